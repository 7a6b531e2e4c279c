"""tf.data on both sides: infeed's batches as a tf.data.Dataset, and exact batches of any tf.data
program.

train_dataset and eval_dataset hand out what pipeline.datasets delivers, for Keras, tf.distribute or
a `map` of your own, at the cost of one more copy of each batch. `examples` reads this host's
records with tf.data's own parts. training_batches and evaluation_batches make one host's static
batches of a program of single examples. The trainer takes all of them: until you map it, a dataset
made here carries its input, and the trainer reads that directly, with its proof and its
position."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial, update_wrapper
from inspect import signature
from typing import Any, ParamSpec

import numpy as np

from pipeline import datasets
from pipeline.datasets import DatasetInput, Position, checked_start_step
from pipeline.errors import EmptySplitError, InputError
from pipeline.hosts import ONE_HOST, Hosts
from pipeline.inputs.batches import DECODING
from pipeline.inputs.input_info import InputInfo, proven_by
from pipeline.inputs.program import TF_DATA, Program, own_rows
from pipeline.inputs.tf_examples import examples, feature_spec, host_counts
from pipeline.inputs.tf_iterator import TfIterator
from pipeline.logs import log
from pipeline.sources.records import Records
from pipeline.spec import INDEX, MASK, NUMBERS, RESERVED, ArraySpec, delivered, leaves
from pipeline.tf_quiet import JAX_CAME_FIRST, tf

if JAX_CAME_FIRST:  # it needs the accelerators; without it, they are for Keras
    import pipeline.tf_cpu

    assert pipeline.tf_cpu

__all__ = [
    "dataset_of",
    "eval_dataset",
    "evaluation_batches",
    "examples",
    "feature_spec",
    "train_dataset",
    "training_batches",
]

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
    dataset: tf.data.Dataset,
    global_batch: int,
    hosts: Hosts = ONE_HOST,
    *,
    per_host: bool = False,
    start_step: int = 0,
    records: Records | None = None,
) -> tf.data.Dataset:
    """Endless batches of this host: the program is repeated, and batches cross its epochs.

    dataset: of single examples, shuffled: dicts, nested ones too, of numbers of fixed shapes; or
        (x, y) for Keras.
    hosts: by default every host runs the complete program, at the cost of one host for each, and
        keeps its rows of each global batch.
    per_host: the program delivers records of this host only, as `examples` does.
    start_step: that many batches are read and dropped first. The trainer resumes by itself: with a
        saved state of the iterator, if that is exact; else it drops batches, too, and compares them
        with those that it trained on. A program repeats them if
        every shuffle has a seed, files are listed with shuffle=False, and interleave and map are
        deterministic, which is their default. A dataset that reshuffles each iteration repeats them
        only if it is made anew, as by an input_fn.
    records: what `examples` read, as open_dataset returns it: the trainer then knows how many an
        epoch has, for max_epochs.

    Raises InputError for elements that cannot be batched, BatchSizeError."""
    start = checked_start_step(start_step)
    rows, batch = _rows(hosts, global_batch, per_host)
    batches = _static(dataset).repeat().batch(batch, drop_remainder=True)
    return _of_host(batches, global_batch, hosts, rows, start=start, endless=True, records=records)


def evaluation_batches(
    dataset: tf.data.Dataset,
    global_batch: int,
    hosts: Hosts = ONE_HOST,
    *,
    per_host: bool = False,
    records: Records | None = None,
) -> tf.data.Dataset:
    """Every example once, in equally many batches on every host; `_mask` is 0.0 in rows that fill
    the last ones.

    dataset, hosts, per_host: as in training_batches; of (x, y) the batches are (x, y, mask), which
    Keras takes as weights. The trainer checks that it counted N records, the cardinality of
    `dataset`, or with per_host the sum of those of all hosts, which must be known. A program that
    reads files does not know its own unless you state it with
    tf.data.experimental.assert_cardinality. records: what `examples` read, as open_dataset returns
    it: N is then their number, and an evaluation that keeps `_index` and `_crc` is proven.

    Raises as training_batches; EmptySplitError for a dataset without elements; InputError for an
    endless one, and for a number of elements that is unknown or not that of `records`."""
    rows, batch = _rows(hosts, global_batch, per_host)
    count = int(_static(dataset).cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        raise InputError(
            "the dataset is endless, so no epoch of it is exact. Leave out its repeat()."
        )
    if count == 0 and not per_host:
        raise EmptySplitError("the dataset has no elements.")
    known = None if count == tf.data.UNKNOWN_CARDINALITY else count
    if known is None and per_host and hosts.count > 1:
        raise InputError(
            "the number of elements is unknown, and hosts with records of their own must know it. "
            "State it: dataset.apply(tf.data.experimental.assert_cardinality(number))."
        )
    batches = dataset.batch(batch).map(lambda *parts: _padded(_element(parts), int(batch)))
    return _of_host(batches, global_batch, hosts, rows, count=known, records=records)


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
    """A batch filled with rows of padding, and its mask."""
    rows = tf.shape(tf.nest.flatten(batch)[0])[0]

    def filled(leaf: Any, value: float = 0) -> Any:
        pad = tf.fill([global_batch - rows, *leaf.shape[1:]], tf.cast(value, leaf.dtype))
        return tf.ensure_shape(tf.concat([leaf, pad], 0), [global_batch, *leaf.shape[1:]])

    full = tf.nest.map_structure(filled, batch)
    mask = tf.cast(tf.range(global_batch) < rows, tf.float32)
    if isinstance(full, dict):
        if INDEX in batch:
            full[INDEX] = filled(batch[INDEX], RESERVED[INDEX].pad)
        return {MASK: mask} | full  # a mask of their own is 0 on padding, too
    return full if len(full) == 3 else (*full, mask)


def _rows(hosts: Hosts, global_batch: int, per_host: bool) -> tuple[np.ndarray | None, int]:
    """This host's rows of the program's batches, None for all; and the size of these batches."""
    if per_host:
        return None, own_rows(hosts, global_batch)
    if hosts.count > 1:
        log.info(
            "each of %d hosts runs this tf.data program completely, and keeps its rows. A program "
            "that delivers only this host's records says per_host=True",
            hosts.count,
        )
    return np.concatenate([*map(np.array, hosts.host_rows(global_batch))]), global_batch


def _of_host(
    batches: tf.data.Dataset,
    global_batch: int,
    hosts: Hosts,
    rows: np.ndarray | None,
    *,
    start: int = 0,
    endless: bool = False,
    count: int | None = None,
    records: Records | None = None,
) -> tf.data.Dataset:
    """The batches of this host, which carry their Program, unless their elements are tuples."""
    own = rows is None
    alone = hosts.count == 1 or not own
    info = InputInfo(
        spec=_spec(batches, rows),
        fingerprint=TF_DATA,
        start=start,
        num_records=count if alone else None,
        steps_per_epoch=int(batches.cardinality()) if alone and count else None,
        global_batch=global_batch,
        endless=endless,
        program="own" if own else "complete",
        host_records=count,
    )
    if records is not None:
        info = proven_by(info, records.info)
    program = Program(partial(_run, batches), info, hosts, rows)
    if records is not None and not alone:
        counts = host_counts(records, hosts.count)
        if counts[hosts.index] == count:  # as `examples` shares them
            program.agree_on(counts)
            batches = _lengthened(batches, program.info.steps_per_epoch)
    dataset = batches.skip(start) if start else batches
    if not own and not np.array_equal(rows, np.arange(global_batch)):
        dataset = dataset.map(
            lambda *parts: tf.nest.map_structure(
                lambda leaf: tf.gather(leaf, rows), _element(parts)
            )
        )
    if hosts.count > 1:
        dataset = _of_one_host(dataset)
    dataset = dataset.prefetch(DECODING)
    return _carrying(dataset, program) if isinstance(dataset.element_spec, dict) else dataset


def _lengthened(batches: tf.data.Dataset, steps: int | None) -> tf.data.Dataset:
    """The batches, and as many of padding as are missing."""
    missing = (steps or 0) - int(batches.cardinality())
    pad = tf.nest.map_structure(lambda leaf: tf.zeros(leaf.shape, leaf.dtype), batches.element_spec)
    if isinstance(pad, dict) and INDEX in pad:
        pad[INDEX] -= 1
    return batches.concatenate(tf.data.Dataset.from_tensors(pad).repeat(missing))


def _spec(batches: tf.data.Dataset, rows: np.ndarray | None) -> Mapping[str, Any]:
    """The spec, as of a DatasetInput; batches of tuples have none, because only tf.data delivers
    them."""
    if not isinstance(batches.element_spec, dict):
        return {}

    def row(leaf: Any) -> ArraySpec:
        count = leaf.shape[0] if rows is None else len(rows)
        return ArraySpec((count, *leaf.shape[1:]), delivered(np.dtype(leaf.dtype.as_numpy_dtype)))

    spec = tf.nest.map_structure(row, batches.element_spec)
    first = next(leaf for _, leaf in leaves(spec))
    return {MASK: ArraySpec(first.shape[:1], RESERVED[MASK].dtype)} | spec


def _run(
    batches: tf.data.Dataset, position: int, state: Any, steps: int | None
) -> tuple[TfIterator, int]:
    """See Run: from the beginning. Program saves and restores its iterator."""
    del position, state
    if steps is not None:
        batches = _lengthened(batches, steps)
    return TfIterator(batches.prefetch(DECODING), steps), 0


def _of_one_host(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset, which tf.distribute is told not to shard: it already has only the rows of one
    host."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)


def _carrying(dataset: Any, data: DatasetInput | Program) -> tf.data.Dataset:
    # by this name the trainer finds it; what `map` and others return does not have it
    dataset.infeed_input = data
    return dataset
