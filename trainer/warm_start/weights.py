"""The arrays of a checkpoint by name, whatever wrote it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from trainer.warm_start.finding import find_checkpoint
from trainer.warm_start.matching import Array

__all__ = ["Weights", "open_weights"]


@dataclass(frozen=True)
class Weights:
    """The arrays of a checkpoint, and how to read one of them."""

    path: str
    arrays: Mapping[str, Array]
    read: Callable[[str], np.ndarray]


def open_weights(path: str, ema: bool = True) -> Weights:
    """Lists the arrays of the checkpoint at a path. Reads none of them yet. ema: see WarmStart.init_ema.

    Raises OptionError for a path without a checkpoint, CheckpointError for one that cannot be read."""
    found = find_checkpoint(path)
    if found.format == "infeed":
        from trainer.warm_start.own_checkpoint import own_weights

        return own_weights(found.path, ema)
    if found.format == "orbax":
        from trainer.warm_start.orbax_checkpoint import orbax_weights

        return orbax_weights(found.path)
    if found.format == "safetensors":
        from trainer.warm_start.safetensors_files import safetensors_weights

        return safetensors_weights(found.path, found.files)
    from trainer.warm_start.tf_checkpoint import tf_weights

    return tf_weights(found.path)
