"""The arrays of a checkpoint, also under the names and in the layouts of another library: see
mappings.py. NumPy only, but for positions that are resized."""

import math
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, NamedTuple

import numpy as np

from pipeline.logs import logger
from pipeline.storage.schemes import open_storage
from trainer.checkpointing.contents import read_array, read_contents
from trainer.checkpointing.mappings import MAPPINGS, Place, Row, WeightMapping
from trainer.checkpointing.warm_start_finding import Array, model_names

TOPS = ("variables/params", "variables/extra", "ema")  # of a checkpoint of infeed

log = logger("trainer")
Shape = tuple[int, ...]


class Weights(NamedTuple):
    """The arrays of a checkpoint, and how to read one of them."""

    path: str
    arrays: Mapping[str, Array]
    read: Callable[[str], np.ndarray]


def of_infeed(path: str, ema: bool) -> Weights:
    """The arrays of Variables, by the names that a model has; each is compared with its checksum
    when it is read.

    path: the directory of a step. ema: take the averaged parameters if there are any."""
    directory, _, step = path.rpartition("/")
    listed = read_contents(open_storage(path), directory or ".", int(step))["arrays"]
    params, extra, averages = (_names_below(top, listed) for top in TOPS)
    if ema and averages:
        params = averages
    names = model_names(params, extra)

    arrays = {
        name: Array(tuple(listed[each]["shape"]), listed[each]["dtype"])
        for name, each in names.items()
    }
    return Weights(path, arrays, lambda name: read_array(path, names[name], listed[names[name]]))


def _names_below(top: str, names: Iterable[str]) -> dict[str, str]:
    return {name[len(top) + 1 :]: name for name in names if f"{name}/".startswith(f"{top}/")}


def layouts_of(model: Mapping[str, Array]) -> list[WeightMapping]:
    """The published layouts of this model."""
    return [mapping for mapping in MAPPINGS if not mapping.differences(model)]


def recognized(names: Set[str], model: Mapping[str, Array]) -> WeightMapping | None:
    """The layout of this model of whose names a checkpoint has more than half."""
    for mapping in layouts_of(model):
        known = _known(mapping, model)
        if 2 * len(known & names) > len(known):
            return mapping
    return None


def _known(mapping: WeightMapping, model: Mapping[str, Any]) -> set[str]:
    return {theirs for place in mapping.places(model) for theirs in place.theirs}


def as_ours(weights: Weights, mapping: WeightMapping, model: Mapping[str, Array]) -> Weights:
    """The weights with the names of a model's arrays, and their shapes where they fit. What is in
    no row keeps its name."""
    saved, known = weights.arrays, _known(mapping, model)
    arrays = {name: array for name, array in saved.items() if name not in known}
    places = dict[str, Place]()
    for place in mapping.places(model):
        layers = [saved[each] for each in place.theirs if each in saved]
        if layers and place.row.kind != "unread":
            places[place.ours] = place
            ours = model[place.ours].shape[place.row.stacked :]
            others = {_shape(place, each.shape, ours) for each in layers} - {ours}
            shape = next(iter(others), ours)
            number = (len(layers),) if place.row.stacked else ()
            arrays[place.ours] = Array((*number, *shape), layers[0].dtype)

    def read(name: str) -> np.ndarray:
        place = places[name]
        numbers = [weights.read(theirs) for theirs in place.theirs]
        ours = np.empty(model[name].shape, np.result_type(*numbers))
        for layer, theirs in zip(_layers(place.row, ours), numbers, strict=True):
            if place.row.kind == "positions":
                layer[...] = _resized(theirs, layer.shape)
            else:
                parts = np.split(theirs, place.parts) if place.parts > 1 else [theirs]
                place.row.view(layer)[...] = parts[place.part]
        return ours

    return Weights(weights.path, arrays, read)


def as_theirs(mapping: WeightMapping, model: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a model with the names and in the layouts of the mapping, bit by bit."""
    arrays: dict[str, list[np.ndarray]] = {}
    for row, ours, theirs, _, _ in mapping.places(model):
        for name, layer in zip(theirs, _layers(row, model[ours]), strict=True):
            # a copy, as safetensors writes the memory of an array whatever its strides
            array = np.array(0) if row.kind == "unread" else row.view(layer).copy()
            arrays.setdefault(name, []).append(array)
    return {
        name: np.concatenate(parts) if parts[1:] else parts[0] for name, parts in arrays.items()
    }


def _layers(row: Row, ours: np.ndarray) -> list[np.ndarray]:
    """Views of the layers of an array of ours."""
    return [ours[number, ...] for number in range(len(ours))] if row.stacked else [ours]


def _shape(place: Place, theirs: Shape, ours: Shape) -> Shape:
    """That of a layer of ours if theirs fits, else that of theirs, with the axes in our order."""
    row = place.row
    if row.kind == "positions":
        return ours if len(theirs) == 3 and _grid(theirs)[1:] == _grid(ours)[1:] else theirs
    first, *others = (*row.view(np.empty(ours, bool)).shape, 1)
    if (*theirs, 1) == (first * place.parts, *others):
        return ours
    return (*theirs[2:], *theirs[1::-1]) if row.inputs else theirs


def _grid(positions: Shape) -> tuple[int, int, int]:
    """The patches along a side of the image, the tokens before them, and the width."""
    side = math.isqrt(positions[1])
    return side, positions[1] - side**2, positions[2]


def _resized(positions: np.ndarray, shape: Shape) -> np.ndarray:
    """For another number of patches, as timm does it: antialiased and bicubic."""
    (before, tokens, width), (after, _, _) = _grid(positions.shape), _grid(shape)
    if before == after:
        return positions
    import jax

    log.info("positions of %d x %d patches become %d x %d, as in timm", *[before] * 2, *[after] * 2)
    patches = positions[0, tokens:].reshape(before, before, width).astype(np.float32)
    patches = jax.image.resize(patches, (after, after, width), "cubic")
    return np.concatenate([positions[:, :tokens], patches.reshape(1, -1, width)], axis=1)
