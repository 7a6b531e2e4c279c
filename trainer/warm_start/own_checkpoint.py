"""The model's arrays in a checkpoint of infeed. Each is compared with its checksum when it is read."""

import numpy as np

from pipeline.storage.schemes import open_storage
from trainer.checkpointing.contents import read_contents
from trainer.checkpointing.numbers import read_array
from trainer.warm_start.matching import Array, model_names
from trainer.warm_start.weights import Weights

__all__ = ["own_weights"]

TOPS = ("variables/params", "variables/extra", "ema")


def own_weights(path: str, ema: bool) -> Weights:
    """The arrays of Variables, by the names that a model has. ema: take the averaged parameters if there are any.

    path: the directory of a step."""
    directory, _, step = path.rpartition("/")
    listed = read_contents(open_storage(path), directory or ".", int(step))["arrays"]
    params, extra, averages = ({_below(name, top): name for name in listed if _is_below(name, top)} for top in TOPS)
    if ema and averages:
        params = averages
    names = model_names(params, extra)

    def read(name: str) -> np.ndarray:
        return read_array(path, names[name], listed[names[name]])

    arrays = {name: Array(tuple(listed[each]["shape"]), listed[each]["dtype"]) for name, each in names.items()}
    return Weights(path, arrays, read)


def _is_below(name: str, top: str) -> bool:
    return name == top or name.startswith(f"{top}/")


def _below(name: str, top: str) -> str:
    return name.removeprefix(top).removeprefix("/")
