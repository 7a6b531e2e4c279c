"""Shape and dtype of a feature, or of an entry of a batch, known before any record is read.

A layout defines them for a record's payload, ops change them, a DatasetInput guarantees them. NumPy
only."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.checks import did_you_mean
from pipeline.errors import InputError, OptionError, SchemaError
from pipeline.shards.schema import Feature, Schema

BYTES = np.dtype(object)
DTYPES = {"bytes": BYTES, "int64": np.dtype(np.int64), "float32": np.dtype(np.float32)}
_DELIVERED = {
    np.dtype("i8"): np.dtype("i4"),
    np.dtype("u8"): np.dtype("u4"),
    np.dtype("f8"): np.dtype("f4"),
}
NUMBERS = tuple(
    map(np.dtype, ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"))
)


@dataclass(frozen=True)
class ArraySpec:
    """The shape and dtype of a feature in one example, and two values: `pad` fills padding rows,
    `missing` replaces absent values.

    shape: None is an unknown length. dtype: object for bytes. missing: None if no value can be
    absent."""

    shape: tuple[int | None, ...]
    dtype: np.dtype
    pad: float = 0
    missing: float | None = None

    @property
    def fits_a_batch(self) -> bool:
        """Whether rows stack to an array that a device accepts."""
        return None not in self.shape and self.dtype != BYTES

    @property
    def num_bytes(self) -> int:
        """The bytes of an array of this shape, which must be fixed."""
        shape: Any = self.shape
        return math.prod(shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Opaque:
    """A layout: the payload is one feature, the bytes value `key`."""

    key: str = "record"


MASK = "_mask"
"""The key of the mask in a batch: float32 [b], 0 on padding."""
INDEX = "_index"
"""The key of the records' numbers: int32 [b], -1 on padding."""
CRC = "_crc"
"""The key of the records' checksums: uint32 [b], 0 on padding."""
RESERVED = {  # in every batch, in addition to the features
    MASK: ArraySpec((), np.dtype(np.float32)),
    INDEX: ArraySpec((), np.dtype(np.int32), pad=-1),
    CRC: ArraySpec((), np.dtype(np.uint32)),
}
SEED = {"_seed": ArraySpec((2,), np.dtype(np.uint32))}  # in batches of training only
# only where categories of the data may be unknown to a model
UNSEEN = {"_unseen": ArraySpec((), np.dtype(np.int32))}

# The content of a payload: a tf.train.Example, a struct whose dtype has named fields, or bytes that
# only an op can read. A schema without features means the last.
Layout = Schema | np.dtype | Opaque


def feature_specs(layout: Layout) -> Mapping[str, ArraySpec]:
    """The features of one parsed record. A struct's numbers are converted to the machine's byte
    order.

    S and V fields are bytes of their full length, including trailing zeros. Raises SchemaError for
    a dtype without named fields, or a field that is not a number, bytes or an array of them."""
    if isinstance(layout, np.dtype):
        return _struct_specs(layout)
    if isinstance(layout, Schema) and not layout.opaque:
        return {key: _feature_spec(feature) for key, feature in layout.features.items()}
    return {(layout if isinstance(layout, Opaque) else Opaque()).key: ArraySpec((), BYTES)}


def chosen_specs(layout: Layout, keys: Iterable[str]) -> dict[str, ArraySpec]:
    """The specs of these features. Raises OptionError for one that the records do not have."""
    specs = feature_specs(layout)
    chosen = dict[str, ArraySpec]()
    for key in keys:
        if key not in specs:
            raise OptionError(f"the records have no feature {key!r}.{did_you_mean(key, specs)}")
        chosen[key] = specs[key]
    return chosen


def objects(values: Sequence[bytes]) -> np.ndarray:
    """object [n]: np.array would drop the zeros at the end of bytes."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


def delivered(dtype: np.dtype) -> np.dtype:
    """The dtype of a feature in a batch: 64 bits become 32, because JAX computes in 32 bits."""
    return _DELIVERED.get(dtype, dtype)


def narrowed(array: np.ndarray) -> np.ndarray:
    """The array with the dtype that is delivered. InputError for integers that do not fit it."""
    narrow = array.astype(delivered(array.dtype), copy=False)
    if narrow is not array and array.dtype.kind in "iu" and (narrow != array).any():
        raise InputError(
            f"the input delivers {array.dtype} numbers in {array.min()}..{array.max()}, which do "
            f"not fit {narrow.dtype}. JAX computes in 32 bits; deliver smaller numbers."
        )
    return narrow


def centered(values: Any, offset: int, cast: Any = np.asarray) -> Any:
    """float32: integers minus the offset. Differences are exact up to 2**53 before they are
    rounded.

    cast: np.asarray, or tf.cast for tensors."""
    integers = cast(values, "int64")
    half = cast(integers // 2 - offset // 2, "float64")  # cannot overflow
    return cast(half * 2 + cast(integers % 2 - offset % 2, "float64"), "float32")


def with_offsets(
    arrays: Mapping[str, Any], offsets: Mapping[str, float], cast: Any = np.asarray
) -> dict[str, Any]:
    """The arrays plus their offsets: an int is added in int64, a float in float64. cast: as in
    centered."""
    sums = {
        name: cast(arrays[name], np.dtype(type(offset))) + offset
        for name, offset in offsets.items()
        if name in arrays
    }
    return {**arrays, **sums}


def holds(dtype: np.dtype, value: float) -> bool:
    """Whether a numeric dtype can represent `value`; a float may round it, and represents NaN."""
    if dtype.kind == "f":
        return not np.isfinite(value) or abs(value) <= float(np.finfo(dtype).max)
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return float(value).is_integer() and least <= value <= most


def leaves(tree: Mapping[str, Any], *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The path of keys to each leaf of a batch or its spec, which may be nested, and the leaf."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, *path, key)
        else:
            yield (*path, key), value


def tree_of(leaves: Iterable[tuple[Sequence[str], Any]]) -> dict[str, Any]:
    """The inverse of `leaves`: a tree from the path of keys to each leaf, and the leaf."""
    tree = dict[str, Any]()
    for (*folders, key), leaf in leaves:
        at = tree
        for folder in folders:
            at = at.setdefault(folder, {})
        at[key] = leaf
    return tree


def mapped(function: Callable[[Any], Any], tree: Mapping[str, Any]) -> dict[str, Any]:
    """A new tree with what the function makes of each leaf."""
    return tree_of((path, function(leaf)) for path, leaf in leaves(tree))


def _feature_spec(feature: Feature) -> ArraySpec:
    dtype = DTYPES[feature.dtype]
    fixed_number = None not in feature.shape and dtype != BYTES
    return ArraySpec(feature.shape, dtype, missing=0 if feature.optional and fixed_number else None)


def _struct_specs(layout: np.dtype) -> Mapping[str, ArraySpec]:
    if not layout.names:
        raise SchemaError(
            f"the dtype {layout} has no named fields, so its values would have no name in a batch. "
            "Give a structured dtype such as np.dtype([('label', 'u1'), ('image', 'u1', (3, 32, "
            "32))])."
        )
    specs = {}
    for name in layout.names:
        field = layout[name]
        value = field.base.newbyteorder("=")
        if value.type in (np.bytes_, np.void) and value.names is None:
            value = BYTES
        elif value not in NUMBERS:
            raise SchemaError(
                f"field {name!r} is {field.base}; it must be bool, an integer or float of up to 64 "
                "bits, bytes (S or V with a length), or an array of these."
            )
        if not field.itemsize:
            raise SchemaError(f"field {name!r} is {field}, which has no bytes. Leave it out.")
        specs[name] = ArraySpec(field.shape, value)
    return specs
