"""The arrays of safetensors files. Reads one array at a time."""

from collections.abc import Sequence

import numpy as np

from pipeline.errors import CheckpointError
from pipeline.installing import how_to_install
from trainer.warm_start.matching import Array
from trainer.warm_start.weights import Weights

__all__ = ["safetensors_weights"]

# The format's names: https://github.com/huggingface/safetensors#format. Others are kept as they are.
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool"} | {
    f"{sign}{bits}": f"{kind}{bits}" for sign, kind in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)
}


def safetensors_weights(path: str, files: Sequence[str]) -> Weights:
    """The arrays of all files. Raises CheckpointError for a damaged file, and for a name that two of them have."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise CheckpointError(f"{path} needs the package safetensors: {how_to_install('train')}") from error
    arrays: dict[str, Array] = {}
    places: dict[str, str] = {}
    for file in files:
        try:
            with safe_open(file, framework="np") as opened:
                names = list(opened.keys())
                parts = {name: opened.get_slice(name) for name in names}
                found = {name: Array(tuple(part.get_shape()), _dtype(part.get_dtype())) for name, part in parts.items()}
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"cannot read {file}: {error}") from error
        for name in found:
            if name in places:
                raise CheckpointError(f"both {places[name]} and {file} have an array {name!r}. Give one of the files.")
            places[name] = file
        arrays |= found

    def read(name: str) -> np.ndarray:
        try:
            with safe_open(places[name], framework="np") as opened:
                return opened.get_tensor(name)
        except (SafetensorError, OSError, TypeError) as error:
            raise CheckpointError(f"cannot read {name} of {places[name]}: {error}") from error

    return Weights(path, arrays, read)


def _dtype(text: str) -> str:
    return DTYPES.get(text, text)
