"""tf.data on both sides: infeed's batches as a tf.data.Dataset, and exact batches of any tf.data
program.

train_dataset and eval_dataset hand out what pipeline.datasets delivers, for Keras, tf.distribute or
a `map` of your own, at the cost of one more copy of each batch. training_batches and
evaluation_batches make one host's static batches of a program of single examples. The trainer takes
all of them: until you map it, a dataset made here carries its input, and the trainer reads that
directly, with its proof and its position."""

from collections.abc import Callable, Iterator
from functools import update_wrapper
from inspect import signature
from typing import Any, ParamSpec

import numpy as np

from pipeline import datasets
from pipeline.datasets import DatasetInput, Position, checked_start_step
from pipeline.errors import EmptySplitError, InputError
from pipeline.hosts import ONE_HOST, Hosts
from pipeline.inputs.batches import DECODING
from pipeline.inputs.tf_program import MASK, TfProgram
from pipeline.spec import NUMBERS
from pipeline.tf_quiet import JAX_CAME_FIRST, tf

if JAX_CAME_FIRST:  # it needs the accelerators; without it, they are for Keras
    import pipeline.tf_cpu

    assert pipeline.tf_cpu

__all__ = ["dataset_of", "eval_dataset", "evaluation_batches", "train_dataset", "training_batches"]

P = ParamSpec("P")


def dataset_of(data: DatasetInput, position: Position | None = None) -> tf.data.Dataset:
    """The batches of `data` from a position on (default: its start), with static shapes and known
    cardinality.

    Errors become TensorFlow's own types and keep their text. Dropping an iterator waits for a
    stalled disk, up to stall_seconds."""
    at = data.start if position is None else position
    shapes = tf.nest.map_structure(
        lambda spec: tf.TensorSpec(spec.shape, spec.dtype), dict(data.spec)
    )

    def batches() -> Iterator[Any]:
        source = data.batches(at)
        try:
            yield from source
        finally:
            source.close()

    remaining = data.remaining(at)
    cardinality = tf.data.INFINITE_CARDINALITY if remaining is None else remaining
    dataset = tf.data.Dataset.from_generator(batches, output_signature=shapes).prefetch(DECODING)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(cardinality))
    if data.spec[MASK].shape[0] != data.info.global_batch:
        dataset = _of_one_host(dataset)
    return _carrying(dataset, data) if position is None else dataset


def _as_dataset(make: Callable[P, DatasetInput]) -> Callable[P, tf.data.Dataset]:
    def dataset(*args: P.args, **options: P.kwargs) -> tf.data.Dataset:
        return dataset_of(make(*args, **options))

    update_wrapper(dataset, make, ("__name__", "__qualname__"))
    dataset.__doc__ = f"pipeline.datasets.{make.__name__} as a tf.data.Dataset. {make.__doc__}"
    vars(dataset)["__signature__"] = signature(make).replace(return_annotation=tf.data.Dataset)
    return dataset


train_dataset = _as_dataset(datasets.train_dataset)
eval_dataset = _as_dataset(datasets.eval_dataset)


def training_batches(
    dataset: tf.data.Dataset, global_batch: int, hosts: Hosts = ONE_HOST, *, start_step: int = 0
) -> tf.data.Dataset:
    """Endless batches of this host: the program is repeated, and batches cross its epochs.

    dataset: of single examples, shuffled: dicts, nested ones too, of numbers of fixed shapes; or
    (x, y) for Keras. hosts: every host runs the complete program and keeps its rows of each global
    batch. start_step: that many batches are read and dropped first. The trainer resumes by itself,
    and compares the batches that it drops with those that it trained on. A program repeats them if
    every shuffle has a seed, files are listed with shuffle=False, and interleave and map are
    deterministic, which is their default. A dataset that reshuffles each iteration repeats them
    only if it is made anew, as by an input_fn.

    Raises InputError for elements that cannot be batched, BatchSizeError."""
    rows = _rows(hosts, global_batch)
    start = checked_start_step(start_step)
    batches = _static(dataset).repeat().batch(global_batch, drop_remainder=True)
    return _of_host(
        TfProgram(batches, global_batch, rows, num_records=None, endless=True, start=start)
    )


def evaluation_batches(
    dataset: tf.data.Dataset, global_batch: int, hosts: Hosts = ONE_HOST
) -> tf.data.Dataset:
    """Every example once, in ceil(N / global_batch) batches on every host; `_mask` is 0.0 in rows
    that fill the last.

    dataset, hosts: as in training_batches; of (x, y) the batches are (x, y, mask), which Keras
    takes as weights. The trainer checks that it counted N records, the cardinality of `dataset`. A
    program that reads files does not know its own unless you state it with
    tf.data.experimental.assert_cardinality. Checksums are unknown, so an evaluation is not
    `proven`.

    Raises as training_batches; EmptySplitError for a dataset without elements."""
    rows = _rows(hosts, global_batch)
    count = int(_static(dataset).cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        raise InputError(
            "the dataset is endless, so no epoch of it is exact. Leave out its repeat()."
        )
    if count == 0:
        raise EmptySplitError("the dataset has no elements.")
    known = None if count == tf.data.UNKNOWN_CARDINALITY else count
    batches = dataset.batch(global_batch).map(
        lambda *parts: _padded(_element(parts), int(global_batch))
    )
    return _of_host(
        TfProgram(batches, global_batch, rows, num_records=known, endless=False, start=0)
    )


def _static(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset, if its elements can be batched."""
    if not isinstance(dataset, tf.data.Dataset):
        raise InputError(
            f"{type(dataset).__name__} is not a tf.data.Dataset. Give one of single examples."
        )
    elements = dataset.element_spec
    if not isinstance(elements, dict) and not (
        isinstance(elements, tuple) and len(elements) in (2, 3)
    ):
        raise InputError(
            f"the dataset's elements are {elements}. They must be dicts such as {{'image': ..., "
            "'label': ...}; for Keras also (x, y) or (x, y, weight)."
        )
    for leaf in tf.nest.flatten(elements):
        dense = isinstance(leaf, tf.TensorSpec) and leaf.shape.is_fully_defined()
        if not dense or np.dtype(leaf.dtype.as_numpy_dtype) not in NUMBERS:
            raise InputError(
                f"the dataset's elements have {leaf}. Batches are numbers of static shapes: "
                "decode, cast, resize, pad or drop it with `map`; tf.ensure_shape states a shape "
                "that TensorFlow does not know."
            )
    return dataset


def _element(parts: tuple[Any, ...]) -> Any:
    """The element that `map` was called with: it passes the parts of a tuple as arguments."""
    return parts[0] if len(parts) == 1 else parts


def _padded(batch: Any, global_batch: int) -> Any:
    """A batch filled with zeros, and its mask."""
    rows = tf.shape(tf.nest.flatten(batch)[0])[0]

    def filled(leaf: Any) -> Any:
        zeros = tf.zeros([global_batch - rows, *leaf.shape[1:]], leaf.dtype)
        return tf.ensure_shape(tf.concat([leaf, zeros], 0), [global_batch, *leaf.shape[1:]])

    full = tf.nest.map_structure(filled, batch)
    mask = tf.cast(tf.range(global_batch) < rows, tf.float32)
    if isinstance(full, dict):
        return {MASK: mask} | full  # a mask of their own is 0 on padding, too
    return full if len(full) == 3 else (*full, mask)


def _rows(hosts: Hosts, global_batch: int) -> np.ndarray:
    return np.concatenate(list(map(np.asarray, hosts.host_rows(global_batch))))


def _of_host(program: TfProgram) -> tf.data.Dataset:
    """The batches of this input. Carries it, unless their elements are tuples."""
    dataset = program.program.skip(program.info.start) if program.info.start else program.program
    if not np.array_equal(program.rows, np.arange(program.info.global_batch or 0)):
        rows = program.rows
        dataset = dataset.map(
            lambda *parts: tf.nest.map_structure(
                lambda leaf: tf.gather(leaf, rows), _element(parts)
            )
        )
        dataset = _of_one_host(dataset)
    dataset = dataset.prefetch(DECODING)
    return _carrying(dataset, program) if isinstance(dataset.element_spec, dict) else dataset


def _of_one_host(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset, which tf.distribute is told not to shard: it already has only the rows of one
    host."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)


def _carrying(dataset: Any, data: DatasetInput | TfProgram) -> tf.data.Dataset:
    # by this name the trainer finds it; what `map` and others return does not have it
    dataset.infeed_input = data
    return dataset
