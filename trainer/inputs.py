"""The input protocol: how the trainer reads a source of host batches; the adaptor for plain
iterables; and inputs cut to their first batches: overfit_batches trains on them repeatedly,
fast_dev_run evaluates one.

pipeline's DatasetInput implements it structurally. Needs NumPy, and jax for tree paths; no
tensorflow."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from types import GeneratorType
from typing import Any, Literal, Protocol, cast, runtime_checkable

import jax
import numpy as np

from pipeline.description import Description, Source, renumberings
from pipeline.errors import EmptySplitError, FingerprintError, InputError, OptionError
from pipeline.hosts import Hosts
from pipeline.inputs.input_info import InputInfo
from pipeline.inputs.unbatched import Unbatched
from pipeline.spec import MASK, narrowed
from trainer.mesh.batch_spec import batch_struct, check_is_mapping

__all__ = [
    "LABELLED",
    "SEED",
    "Input",
    "InputContext",
    "InputFn",
    "InputInfo",
    "IterableInput",
    "MakeInput",
    "TfDataset",
    "as_function",
    "as_input",
]

SEED = "_seed"
"""The key of the records' seeds in training: uint32 [b, 2], 0 on padding."""
ITERABLE = "iterable"  # in place of a fingerprint
LABELLED = "_labelled"
"""The key that the trainer adds for a task with a Target: float32 [b], 0 on padding and where the
label is missing."""


@dataclass(frozen=True)
class InputContext:
    """Tells an input_fn which rows of which batches to make.

    mode: what the batches are for.
    global_batch_size, per_host_batch_size, per_device_batch_size: in records.
    hosts: which rows this host delivers.
    seed: TrainerConfig.seed.
    start_step: the first step to train; 0 in evaluation.
    stall_seconds: how long a batch may take before the run ends with an error.
    workers: see train_dataset.
    max_masked: how many bad records to leave out of an evaluation or prediction; with 0, one is an
        error.
    reading: other options of train_dataset and eval_dataset that the TrainerConfig and the task
        decide, by name."""

    mode: Literal["train", "eval", "predict"]
    global_batch_size: int
    per_host_batch_size: int
    per_device_batch_size: int
    hosts: Hosts
    seed: int
    start_step: int
    stall_seconds: float
    workers: int | Literal["auto"] = "auto"
    max_masked: int = 0
    reading: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Input(Protocol):
    """A source of host batches that can start at any position.

    Positions are opaque; an array once yielded is not written again."""

    @property
    def info(self) -> InputInfo:
        """What is known of it before the first batch."""
        ...

    def batches(self, position: Any, /) -> Iterator[Mapping[str, Any]]:
        """Batches from `position` on. Its close(), if any, returns immediately, even while another
        thread waits."""
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
class TfDataset(Protocol):
    """A tf.data.Dataset of batches. One of dicts that pipeline.tf_data made is read as the Input
    that it carries."""

    def as_numpy_iterator(self) -> Iterator[Any]:
        """The batches, in NumPy."""
        ...


Made = Input | TfDataset | Iterable[Mapping[str, Any]]
MakeInput = Callable[[InputContext], Made] | Callable[[], Made]
"""A function that makes the input of one host: of the context, or of nothing where a dataset has no
batch size."""
InputFn = MakeInput | Input | TfDataset
"""What a Trainer takes as input: a function of the context, called on every host. On a single host,
what it would return may be given in its place, except for a plain iterable, which can be read only
once."""


class IterableInput:
    """An iterable of dicts of NumPy arrays (or trees of them) as an Input that can be neither
    resumed nor proven.

    A missing `_mask` is host_batch ones. 64-bit values are narrowed, as JAX computes in 32 bits;
    integers that do not fit are an InputError. Arrays are copied, so the iterable may reuse its
    own.

    info: its spec is that of the first batch; nothing else is known. exhausted: whether its only
    epoch has begun."""

    def __init__(self, iterable: Iterable[Mapping[str, Any]], host_batch: int) -> None:
        self._iterator = iter(iterable)
        self._host_batch = host_batch
        self.exhausted = False
        try:
            self._first = _completed(next(self._iterator), host_batch)
        except StopIteration:
            raise EmptySplitError(
                "the input has no batches. input_fn must return a non-empty iterable."
            ) from None
        self.info = InputInfo(batch_struct(self._first), ITERABLE)

    def batches(self, _: Any, /) -> Iterator[Mapping[str, Any]]:
        """The rest of the iterable; ignores the position."""
        self.exhausted = True
        try:
            yield self._first
            yield from (_completed(batch, self._host_batch) for batch in self._iterator)
        finally:
            if isinstance(self._iterator, GeneratorType):
                self._iterator.close()

    def advance(self, position: Any, n_batches: int, /) -> Any:
        """None: there are no positions."""

    def state(self, _: Any, /) -> dict[str, Any]:
        """Records only that there are no positions."""
        return {"fingerprint": self.info.fingerprint}

    def restore(self, state: dict[str, Any], /) -> Any:
        """None: input_fn decides where the iterable starts (InputContext.start_step).
        FingerprintError for the state of other first batches than these."""
        if self.info.fingerprint not in (ITERABLE, state.get("fingerprint")):
            raise FingerprintError(
                f"the run read {state.get('fingerprint')}, and this is {self.info.fingerprint}. "
                "Give the data and the overfit_batches that it started with, or another workdir."
            )


def _is_input(source: object) -> bool:
    # Since Python 3.12, isinstance does not see what a wrapper passes on by its __getattr__.
    methods = (getattr(source, name, None) for name in ("batches", "advance", "state", "restore"))
    return all(map(callable, methods)) and hasattr(source, "info")


def _is_of_grain(source: object) -> bool:
    return type(source).__module__.startswith("grain.")


def as_function(given: InputFn) -> Callable[[InputContext], Made]:
    """A function of the context, whatever is given as input. Raises OptionError for what is
    none."""
    if callable(given):
        return partial(_called, given)
    is_input = _is_input(given) or isinstance(given, TfDataset)
    if _is_of_grain(given) or (is_input and jax.process_count() == 1):
        return lambda _: given
    raise OptionError(
        f"the input is a {type(given).__name__}{', and this run has several hosts' * is_input}. "
        "Give a function that makes it from the context, or a train_dataset without global_batch."
    )


def _called(given: Callable[..., Any], context: InputContext) -> Any:
    """What the function returns; a dataset without a batch size gets that of the context."""
    parameters = signature(given)
    arguments = [context] * bool(parameters.parameters)
    try:
        parameters.bind(*arguments)
    except TypeError as error:
        raise OptionError(
            f"an input function is called with the InputContext, and nothing else: {error}."
        ) from error
    source = given(*arguments)
    return source(context) if isinstance(source, Unbatched) else source


def as_input(source: object, context: InputContext) -> Input:
    """`source`, or what it carries, if that is an Input; otherwise an adaptor for Grain's datasets
    and iterators, or for the iterable."""
    source = getattr(source, "infeed_input", source)
    if _is_input(source):
        return cast(Input, source)
    if _is_of_grain(source):
        from pipeline.inputs import grain_batches as of_grain

        trains = context.mode == "train"
        batches = of_grain.training_batches if trains else of_grain.evaluation_batches
        return batches(source, context.global_batch_size, context.hosts)
    if isinstance(source, TfDataset):
        source = source.as_numpy_iterator()
    if isinstance(source, Iterable) and not isinstance(source, (str, Mapping)):
        return IterableInput(source, context.per_host_batch_size)
    raise InputError(
        f"input_fn returned a {type(source).__name__}. It must return a pipeline dataset "
        "(pipeline.datasets.train_dataset), a program of tf.data or Grain, or an iterable of dicts "
        "of NumPy arrays."
    )


def described_as(
    source: Input, model: Description | None, target: Mapping[str, int], **options: bool
) -> Input:
    """The input with the numbers of the model's description. target, options: see
    DatasetInput.described_as.

    InputError for an input of another kind that would need other numbers; OptionError for what has
    no such number."""
    own = source.info.description
    if own is None or model is None:
        return source
    # Ask the class: a wrapper that forwards attributes may change the batches.
    if hasattr(type(source), "described_as"):
        return cast(Any, source).described_as(model, target, **options)
    sources = [Source(0, source.info.name or "the input", own)]
    renumbered = renumberings(model, sources, own.schema.features, target, **options)
    for key, renumbering in renumbered.items():
        if renumbering.changes:
            raise InputError(
                f"the data number the classes of {key!r} unlike the model, and a "
                f"{type(source).__name__} cannot map them. Give what eval_dataset returns, or "
                "convert the data like the training data."
            )
    return source


def _completed(batch: Mapping[str, Any], host_batch: int) -> dict[str, Any]:
    check_is_mapping(batch)
    mask = {} if MASK in batch else {MASK: np.ones(host_batch, np.float32)}
    return {key: jax.tree.map(_narrowed, value) for key, value in batch.items()} | mask


def _narrowed(value: Any) -> np.ndarray:
    array = np.array(value)  # a copy: on CPU, JAX may use the memory of the original
    return array if jax.config.read("jax_enable_x64") else narrowed(array)


def first_batches(source: Input, count: int, repeated_from: int | None = None) -> Input:
    """The first batches of an input, read now and kept in memory, which prove nothing. InputError
    if it has fewer.

    repeated_from: the step with which they begin, repeated without end; None: each comes once."""
    batches = source.batches(source.info.start)
    first = [*itertools.islice(batches, count)]
    getattr(batches, "close", lambda: None)()  # its threads and buffers are no longer needed
    if len(first) < count:
        raise InputError(
            f"the input has only {len(first)} batches; its first {count} are needed. Ask for fewer."
        )
    if repeated_from is None:
        return IterableInput(first, 0)
    repeated = IterableInput(
        itertools.islice(itertools.cycle(first), repeated_from % count, None), 0
    )
    name = f"the first {count} batches of {source.info.fingerprint}"
    repeated.info = replace(repeated.info, fingerprint=name, endless=True)
    return repeated
