"""The input protocol: how the trainer reads a source of host batches; and the adaptor for plain iterables.

pipeline's DatasetInput implements it structurally. Needs NumPy, and jax for tree paths; no tensorflow."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import GeneratorType, MappingProxyType
from typing import Any, Literal, Protocol, cast, runtime_checkable

import jax
import numpy as np

from pipeline.errors import EmptySplitError, InputError, OptionError
from pipeline.hosts import Hosts
from trainer.batch_spec import NARROW, batch_struct, check_is_mapping

__all__ = [
    "CRC",
    "INDEX",
    "MASK",
    "SEED",
    "CompleteInput",
    "Input",
    "InputContext",
    "InputFn",
    "IterableInput",
    "MakeInput",
    "TfDataset",
    "as_function",
    "as_input",
]

MASK = "_mask"
"""The key of the mask in a batch: float32 [b], 0 on padding."""
INDEX = "_index"
"""The key of the records' numbers: int32 [b], -1 on padding."""
CRC = "_crc"
"""The key of the records' checksums: uint32 [b], 0 on padding."""
SEED = "_seed"
"""The key of the records' seeds in training: uint32 [b, 2], 0 on padding."""


@dataclass(frozen=True)
class InputContext:
    """Tells an input_fn which rows of which batches to make.

    mode: what the batches are for. global_batch_size, per_host_batch_size, per_device_batch_size: in records. hosts:
    which rows this host delivers. seed: TrainerConfig.seed. start_step: the first step to train; 0 in evaluation.
    stall_seconds: how long a batch may take before the run ends with an error."""

    mode: Literal["train", "eval", "predict"]
    global_batch_size: int
    per_host_batch_size: int
    per_device_batch_size: int
    hosts: Hosts
    seed: int
    start_step: int
    stall_seconds: float


@runtime_checkable
class Input(Protocol):
    """A source that knows its size and can start at any position.

    spec: key -> object with .shape (host batch first, unless TrainerConfig.batch_axis names another axis) and .dtype;
    `_mask` float32 [b], `_index` int32 [b] (-1 on padding) and `_crc` uint32 [b] (0 on padding) are part of it, in
    training also `_seed` uint32 [b, 2] (different for each record and epoch, 0 on padding), from which Task.augment
    draws. num_records: of one epoch, over all hosts.
    steps_per_epoch: batches of one. fingerprint: identifies the data. expected_crc: sum of the crcs
    of the records due in one exact epoch, mod 2**32; None where it cannot be proven. start: the position of the first
    batch. Positions are opaque; an array once yielded is not written again.

    An Input may also have the attributes of CompleteInput; `as_input` adds those it lacks."""

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
        """Batches from `position` on. Its close(), if any, returns immediately, even while another thread waits."""
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


@runtime_checkable
class CompleteInput(Input, Protocol):
    """An Input that also states whether it ends and how it treats bad records, as `as_input` returns it.

    endless: whether its batches never end. on_error: "raise", "mask" or "skip"; only with "mask" may an evaluation mask
    rows of records that are due. quarantine: the bad records that this host has read so far. verify_command: the
    command that lists damaged records; None if there is none. totals: sums over all records due that the dataset
    states, such as num_bytes of text; an evaluation compares what metrics add up under these names. provenance: how the
    batches came about, as JSON, for trainer.seen: see DatasetInput; None if that is not known."""

    @property
    def endless(self) -> bool: ...  # noqa: D102
    @property
    def on_error(self) -> str: ...  # noqa: D102
    @property
    def quarantine(self) -> Sequence[Any]: ...  # noqa: D102
    @property
    def verify_command(self) -> str | None: ...  # noqa: D102
    @property
    def totals(self) -> Mapping[str, int]: ...  # noqa: D102
    @property
    def provenance(self) -> Mapping[str, Any] | None: ...  # noqa: D102


@runtime_checkable
class TfDataset(Protocol):
    """A tf.data.Dataset of batches. One of dicts that pipeline.tf_data made is read as the Input that it carries."""

    def as_numpy_iterator(self) -> Iterator[Any]:
        """The batches, in NumPy."""
        ...


MakeInput = Callable[[InputContext], Input | TfDataset | Iterable[Mapping[str, Any]]]
"""A function of the context that makes the input of one host."""
InputFn = MakeInput | Input | TfDataset
"""What a Trainer takes as input: a function of the context, called on every host. On a single host, what it would
return may be given in its place, except for a plain iterable, which can be read only once."""


class IterableInput:
    """An iterable of dicts of NumPy arrays (or trees of them) as an Input that can be neither resumed nor proven.

    A missing `_mask` is host_batch ones. 64-bit values are narrowed, as JAX computes in 32 bits; integers that do not
    fit are an InputError. Arrays are copied, so the iterable may reuse its own.

    spec: of the first batch. num_records, steps_per_epoch, expected_crc, start, verify_command and provenance are None,
    because nothing is known; totals is empty and endless False; fingerprint, on_error and quarantine never change."""

    num_records = None
    steps_per_epoch = None
    fingerprint = "iterable"
    expected_crc = None
    start = None
    endless = False
    on_error = "raise"
    quarantine = ()
    verify_command = None
    totals: Mapping[str, int] = MappingProxyType({})
    provenance = None

    def __init__(self, iterable: Iterable[Mapping[str, Any]], host_batch: int) -> None:
        self._iterator, self._host_batch = iter(iterable), host_batch
        try:
            self._first = _completed(next(self._iterator), host_batch)
        except StopIteration:
            raise EmptySplitError("the input has no batches. input_fn must return a non-empty iterable.") from None
        self.spec = batch_struct(self._first)

    def batches(self, position: Any, /) -> Iterator[Mapping[str, Any]]:
        """The rest of the iterable; ignores the position."""
        del position
        try:
            yield self._first
            yield from (_completed(batch, self._host_batch) for batch in self._iterator)
        finally:
            if isinstance(self._iterator, GeneratorType):
                self._iterator.close()

    def advance(self, position: Any, n_batches: int, /) -> Any:
        """None: there are no positions."""
        del position, n_batches

    def state(self, position: Any, /) -> dict[str, Any]:
        """Records only that there are no positions."""
        del position
        return {"fingerprint": self.fingerprint}

    def restore(self, state: dict[str, Any], /) -> Any:
        """None: input_fn decides where the iterable starts (InputContext.start_step)."""
        del state


_INPUT, _ADDED = ([name for name in vars(protocol) if name[0] != "_"] for protocol in (Input, CompleteInput))


def _has(source: object, names: Iterable[str]) -> bool:
    # Since Python 3.12, isinstance does not see what a wrapper passes on by its __getattr__.
    return all(hasattr(source, name) for name in names)


class _Completed:
    """A user's Input, with IterableInput's values of the attributes that it lacks."""

    def __init__(self, source: Input) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        if name in _ADDED:
            return getattr(self._source, name, getattr(IterableInput, name))
        return getattr(self._source, name)


def as_function(given: InputFn) -> MakeInput:
    """The function, or one that returns the input given in its place. Raises OptionError for anything else."""
    if callable(given):
        return given
    is_input = isinstance(given, (Input, TfDataset))
    if is_input and jax.process_count() == 1:
        return lambda _: given
    raise OptionError(
        f"the input is a {type(given).__name__}{', and this run has several hosts' * is_input}. Give a function that "
        "makes it: lambda ctx: train_dataset(..., global_batch=ctx.global_batch_size, hosts=ctx.hosts)."
    )


def as_input(source: object, host_batch: int) -> CompleteInput:
    """`source`, or what it carries, if that is a CompleteInput; otherwise an adaptor for the Input or the iterable.

    host_batch: rows of its batches."""
    source = getattr(source, "infeed_input", source)
    if _has(source, _INPUT) and _has(source, _ADDED):
        return cast(CompleteInput, source)
    if _has(source, _INPUT):
        adaptor = type(type(source).__name__, (_Completed,), {})  # messages name the user's class
        return cast(CompleteInput, adaptor(cast(Input, source)))
    if isinstance(source, TfDataset):
        source = source.as_numpy_iterator()
    if isinstance(source, Iterable) and not isinstance(source, (str, Mapping)):
        return cast(CompleteInput, IterableInput(source, host_batch))
    raise InputError(
        f"input_fn returned a {type(source).__name__}. It must return a pipeline dataset "
        "(pipeline.datasets.train_dataset), a tf.data.Dataset of dicts, or an iterable of dicts of NumPy arrays."
    )


def _completed(batch: Mapping[str, Any], host_batch: int) -> dict[str, Any]:
    check_is_mapping(batch)
    mask = {} if MASK in batch else {MASK: np.ones(host_batch, np.float32)}
    return {key: jax.tree.map(_narrowed, value) for key, value in batch.items()} | mask


def _narrowed(value: Any) -> np.ndarray:
    array = np.array(value)  # a copy: on CPU, JAX may use the memory of the original
    narrow = None if jax.config.read("jax_enable_x64") else NARROW.get(array.dtype)
    if narrow is None:
        return array
    if array.dtype.kind != "f" and array.size:
        limits = np.iinfo(narrow)
        if array.min() < limits.min or array.max() > limits.max:
            raise InputError(
                f"an array of {array.dtype} contains {array.min()}..{array.max()}, which does not fit "
                f"{np.dtype(narrow)}. JAX computes in 32 bits; deliver smaller numbers."
            )
    return array.astype(narrow)
