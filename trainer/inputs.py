"""The input protocol: what the trainer asks of a source of host batches, and the adaptor for plain iterables.

pipeline.datasets.Input fulfils it by its shape alone. NumPy, and jax for tree paths; no tensorflow."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import GeneratorType
from typing import Any, Literal, Protocol, cast, runtime_checkable

import jax
import numpy as np

from pipeline.hosts import Hosts
from pipeline.shards.errors import EmptySplitError, InputError

__all__ = [
    "CRC",
    "INDEX",
    "MASK",
    "SEED",
    "Input",
    "InputContext",
    "InputFn",
    "IterableInput",
    "as_input",
    "batch_struct",
    "check_batch",
    "check_rows",
    "named_leaves",
    "on_error_of",
    "path_name",
]

MASK, INDEX, CRC, SEED = "_mask", "_index", "_crc", "_seed"
_NARROW = {np.dtype(np.int64): np.int32, np.dtype(np.uint64): np.uint32, np.dtype(np.float64): np.float32}


@dataclass(frozen=True)
class InputContext:
    """What an input_fn is told: which rows of which batches to make."""

    mode: Literal["train", "eval", "predict"]
    global_batch_size: int
    per_host_batch_size: int
    per_device_batch_size: int
    hosts: Hosts
    seed: int
    start_step: int  # the first step that will be trained; 0 in evaluation
    stall_seconds: float  # how long one batch may take before the run ends with an error


@runtime_checkable
class Input(Protocol):
    """A source that knows its size and can start at any position.

    spec: key -> object with .shape (host batch first) and .dtype; `_mask` float32 [b], `_index` int32 [b] (-1 on
    padding) and `_crc` uint32 [b] (0 on padding) are part of it, in training `_seed` uint32 [b, 2], too (another for
    each record and epoch, 0 on padding), from which Task.augment draws. num_records: of one epoch, over all hosts.
    steps_per_epoch: batches of one. expected_crc: sum of the crcs of the records due in one exact epoch, mod 2**32;
    None where it cannot be proven. Positions are opaque; an array once yielded is not written again."""

    @property
    def spec(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def num_records(self) -> int | None: ...  # noqa: D102
    @property
    def steps_per_epoch(self) -> int | None: ...  # noqa: D102
    @property
    def fingerprint(self) -> str: ...  # noqa: D102
    @property
    def expected_crc(self) -> int | None: ...  # noqa: D102
    @property
    def start(self) -> Any: ...  # noqa: D102
    def batches(self, position: Any, /) -> Iterator[Mapping[str, Any]]:
        """Batches from `position` on. Its close(), if any, returns at once, also while another thread waits."""
        ...

    def advance(self, position: Any, n_batches: int, /) -> Any:
        """The position `n_batches` later."""
        ...

    def state(self, position: Any, /) -> dict[str, Any]:
        """`position` as JSON."""
        ...

    def restore(self, state: dict[str, Any], /) -> Any:
        """The position that was saved. FingerprintError for a state of another dataset or order."""
        ...


InputFn = Callable[[InputContext], Input | Iterable[Mapping[str, Any]]]


class IterableInput:
    """An iterable of dicts of NumPy arrays (or trees of them) as an Input that can be neither resumed nor proven.

    A missing `_mask` is all ones. 64-bit values are narrowed, as JAX computes in 32 bits; an integer that does not
    fit is an InputError. The arrays are copied, so the iterable may reuse its own."""

    num_records = None
    steps_per_epoch = None
    fingerprint = "iterable"
    expected_crc = None
    start = None

    def __init__(self, iterable: Iterable[Mapping[str, Any]]) -> None:
        self._iterator = iter(iterable)
        try:
            self._first = _completed(next(self._iterator))
        except StopIteration:
            raise EmptySplitError("the input has no batches. input_fn must return a non-empty iterable.") from None
        self.spec = batch_struct(self._first)

    def batches(self, position: Any, /) -> Iterator[Mapping[str, Any]]:
        """What is left of the iterable; the position is ignored."""
        del position
        try:
            yield self._first
            yield from map(_completed, self._iterator)
        finally:
            if isinstance(self._iterator, GeneratorType):
                self._iterator.close()

    def advance(self, position: Any, n_batches: int, /) -> Any:
        """None: there are no positions."""
        del position, n_batches

    def state(self, position: Any, /) -> dict[str, Any]:
        """Nothing but the word that there is none."""
        del position
        return {"fingerprint": self.fingerprint}

    def restore(self, state: dict[str, Any], /) -> Any:
        """None: the iterable starts where input_fn starts it (InputContext.start_step)."""
        del state


def as_input(source: object) -> Input:
    """`source` if it is an Input, else the adaptor around it."""
    if isinstance(source, Input):
        return source
    if isinstance(source, Iterable) and not isinstance(source, (str, Mapping)):
        return cast(Input, IterableInput(source))
    raise InputError(
        f"input_fn returned a {type(source).__name__}. It must return a pipeline dataset "
        "(pipeline.datasets.train_dataset) or an iterable of dicts of NumPy arrays."
    )


def on_error_of(source: Input) -> str:
    """What the input does about bad records: "raise", unless it has an `on_error` that says otherwise.

    Only one that says "mask" may mask rows of records that are due."""
    return getattr(source, "on_error", "raise")


def batch_struct(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A batch's spec as a tree of jax.ShapeDtypeStruct. InputError for a dtype that JAX would narrow in silence."""
    struct = {
        key: jax.tree.map(lambda x: jax.ShapeDtypeStruct(tuple(x.shape), np.dtype(x.dtype)), value)
        for key, value in spec.items()
    }
    for path, leaf in jax.tree_util.tree_leaves_with_path(struct):
        if leaf.dtype in _NARROW and not jax.config.read("jax_enable_x64"):
            raise InputError(
                f"the batch's {path_name(path)} is {leaf.dtype}, which JAX would cut to 32 bits. "
                f"Deliver {np.dtype(_NARROW[leaf.dtype])}."
            )
        if leaf.dtype.kind not in "biufV":  # V: bfloat16 and its kin
            raise InputError(
                f"the batch's {path_name(path)} is {leaf.dtype}. A batch holds numbers; drop or encode it."
            )
    return struct


def check_rows(struct: Mapping[str, Any], host_batch: int) -> None:
    """Raises InputError, naming the key, unless every array of the spec has `host_batch` rows."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(dict(struct)):
        if leaf.shape[:1] != (host_batch,):
            raise InputError(
                f"the input's {path_name(path)} is {leaf.dtype} {list(leaf.shape)}; expected {host_batch} rows, the "
                "host's part of the global batch. Make batches of InputContext.per_host_batch_size rows."
            )


def check_batch(batch: Mapping[str, Any], struct: Mapping[str, Any]) -> None:
    """Raises InputError, naming the key, unless `batch` has the keys, shapes and dtypes of `struct`."""
    if not isinstance(batch, Mapping):
        raise InputError(f"a batch is a {type(batch).__name__}. It must be a dict such as {{'image': array}}.")
    if _alike(batch, struct):
        return
    got = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(dict(batch))}
    expected = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(dict(struct))}
    if got.keys() != expected.keys():
        raise InputError(
            f"a batch has the keys {', '.join(sorted(got))}; expected {', '.join(sorted(expected))}. "
            "All batches must have the same keys."
        )
    for name, want in expected.items():
        have = got[name]
        if tuple(have.shape) != want.shape or have.dtype != want.dtype:
            raise InputError(
                f"a batch's {name} is {have.dtype} {list(have.shape)}; expected {want.dtype} {list(want.shape)}. "
                "Shapes are static: pad the batch, with _mask 0 on the padding, or drop the remainder."
            )


def _alike(batch: Mapping[str, Any], struct: Mapping[str, Any]) -> bool:
    # Every batch comes by here: this takes 1 us for three arrays, the tree's machinery 3, with names 11.
    for key, want in struct.items():
        have = batch.get(key)
        if type(have) is not np.ndarray or have.shape != want.shape or have.dtype != want.dtype:
            break
    else:
        return len(batch) == len(struct)
    leaves, tree = jax.tree.flatten(dict(batch))
    wanted, wanted_tree = jax.tree.flatten(dict(struct))
    return tree == wanted_tree and all(
        have.shape == want.shape and have.dtype == want.dtype for have, want in zip(leaves, wanted, strict=True)
    )


def _completed(batch: object) -> dict[str, Any]:
    if not isinstance(batch, Mapping):
        raise InputError(f"a batch is a {type(batch).__name__}. It must be a dict such as {{'image': array}}.")
    full = {key: jax.tree.map(_narrowed, value) for key, value in batch.items()}
    if MASK not in full:
        leaves = jax.tree.leaves(full)
        if not leaves or not leaves[0].shape:
            raise InputError(f"a batch with the keys {sorted(full)} has no rows. Its arrays start with the batch axis.")
        full[MASK] = np.ones(leaves[0].shape[:1], np.float32)
    return full


def _narrowed(value: Any) -> np.ndarray:
    array = np.array(value)  # a copy: on CPU, JAX may use the memory of the array as it is
    narrow = None if jax.config.read("jax_enable_x64") else _NARROW.get(array.dtype)
    if narrow is None:
        return array
    if array.dtype.kind != "f" and array.size:
        limits = np.iinfo(narrow)
        if array.min() < limits.min or array.max() > limits.max:
            raise InputError(
                f"an array of {array.dtype} holds {array.min()}..{array.max()}, which does not fit "
                f"{np.dtype(narrow)}. JAX computes in 32 bits; deliver smaller numbers."
            )
    return array.astype(narrow)


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their names, such as "dense/kernel"."""
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def path_name(path: Any) -> str:
    """The name of a leaf from its path, such as "dense/kernel"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")
