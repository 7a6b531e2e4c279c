"""Turns records into the features of any number of rows: parsing, ops, and 32-bit numbers.

The Decoder makes batches of them; an exported model is compared with their features."""

import contextlib
import functools
import math
import os
import select
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.decoding.columns import Column, Columns, Ragged, renumbered
from pipeline.decoding.examples import ExampleParser
from pipeline.decoding.op import Features, Rng, rngs_of
from pipeline.decoding.planning import PadTo, Plan, Step, pad_rows
from pipeline.description import Renumbering
from pipeline.errors import SchemaError
from pipeline.shards.schema import Schema
from pipeline.sizes import num_cores
from pipeline.spec import (
    UNSEEN,
    Layout,
    centered,
    chosen_specs,
    delivered,
    objects,
    struct_columns,
)

_FIRST, _MEASURED, _PART = 4, 9, 8  # rows
THREADS: int | None = None  # None: one per core. Worker processes share the cores
_MOST_THREADS = 8  # of photographs, sixteen make a fifth less: they wait for the GIL
_SLOW = 100e-6  # seconds of CPU time per row
_MOST_SECONDS = 0.1  # of measuring one row: an op may hang


class TooSlow(Exception):  # noqa: N818 (not an error: the rows are decoded in smaller parts)
    """Ops took longer than they may."""


class RowDecoder:
    """Makes the features `keys` of a plan's output, each an array [n, *shape].

    steps: the ops by their place in the list.
    offsets: see train_dataset.
    stored: the features of a record from which it makes the keys.
    set_by_ops: those of the keys that ops set, and their specs.
    renumbered: those of the stored features that get other numbers before the ops.
    only_needed: leaves out ops that none of the keys depends on, and so what only they read."""

    def __init__(
        self,
        layout: Layout,
        plan: Plan,
        pad_to: Mapping[str, PadTo],
        offsets: Mapping[str, int],
        keys: Sequence[str],
        renumbered: Mapping[str, Renumbering],
        *,
        only_needed: bool = False,
    ) -> None:
        self.layout = layout
        self.pad_to = pad_to
        self.offsets = offsets
        self.keys = tuple(keys)
        self.num_ops = len(plan.steps)
        # from the last op back to the features of a record
        steps = dict[int, Step]()
        needed = set(keys)
        for place, step in reversed(list(enumerate(plan.steps))):
            if not only_needed or needed & step.sets.keys():
                steps[place] = step
                needed = (needed - step.sets.keys()) | set(step.op.reads)
        self.steps = dict(sorted(steps.items()))
        counted = {pad.length_into: key for key, pad in pad_to.items()}
        self.stored = sorted({counted.get(key, key) for key in needed})
        self.renumbered = {key: each for key, each in renumbered.items() if key in self.stored}
        outputs = {key for step in self.steps.values() for key in step.sets}
        self.set_by_ops = {key: plan.specs[key] for key in self.keys if key in outputs}
        self._parse = parser_of(layout, self.stored, narrow=not self.steps)
        self.threads = _RowThreads()

    def decode(
        self, payloads: Sequence[bytes], seeds: np.ndarray, until: float = math.inf
    ) -> Features:
        """The features of these records. seeds: int32 [n, ops, 2]. Raises SchemaError, which does
        not name a record; TooSlow if the ops are not done `until` that time.monotonic()."""
        parsed = self._parse(payloads)
        numbers, hidden = renumbered(parsed, self.renumbered)
        columns = pad_rows({**parsed, **numbers}, self.pad_to)
        features: Features = dict(columns)
        if self.steps:
            features |= self._apply_ops(columns, seeds, until)
        arrays = {key: narrowed(key, features[key], self.offsets.get(key)) for key in self.keys}
        return arrays if hidden is None else arrays | dict.fromkeys(UNSEEN, hidden)

    def decode_one(self, record: Features, rngs: Sequence[Rng]) -> Features:
        """The features of one parsed record, arrays and scalars, in a quarter of the time of
        `decode` for small ones. rngs: by the place of the op. Raises SchemaError."""
        for place, step in self.steps.items():
            record = step(record, rngs[place])
        return {key: narrowed(key, np.asarray(record[key], order="C"))[()] for key in self.keys}

    def _apply_ops(
        self, features: Mapping[str, Column], seeds: np.ndarray, until: float
    ) -> Features:
        """The features among `keys` that ops set."""
        rows = {
            key: each.rows() if isinstance(each, Ragged) else each for key, each in features.items()
        }
        rngs = {place: rngs_of(seeds[:, place]) for place in self.steps}
        arrays = dict[str, np.ndarray]()
        for key, spec in self.set_by_ops.items():
            shape: Any = spec.shape
            arrays[key] = np.empty((len(seeds), *shape), spec.dtype)

        def apply(some: range) -> None:
            for row in some:
                if time.monotonic() > until:
                    raise TooSlow
                record: Features = {key: values[row] for key, values in rows.items()}
                for place, step in self.steps.items():
                    record = step(record, rngs[place][row])
                for key, values in arrays.items():
                    values[row] = record[key]

        self.threads(len(seeds), apply)
        return arrays


def narrowed(key: str, values: np.ndarray, offset: int | None = None) -> np.ndarray:
    """Narrows 64 bits to 32, because JAX computes in 32. A value out of range is an error; floats
    are rounded, and so are integers minus an offset."""
    if offset is not None and values.dtype.kind in "iu":
        return centered(values, offset)
    dtype = delivered(values.dtype)
    if dtype == values.dtype:
        return values
    with np.errstate(over="ignore"):
        small = values.astype(dtype)
    same = np.isfinite(small) == np.isfinite(values) if dtype.kind == "f" else small == values
    if not same.all():
        raise SchemaError(
            f"{key!r} is delivered as {dtype} and has a value out of range; leave it out of keys, "
            f"or map it in an op. Its minimum and maximum are {values.min()} and {values.max()}."
        )
    return small


class _RowThreads:
    """Applies a function to the rows of a batch, in as many threads as there are cores, if that
    pays.

    Python's threads take turns at its lock, which the decoders of images release: photographs are
    decoded on all cores. But where a row takes less than 100 us, threads mostly wait for each
    other, and take half as long again. Rows of the batch before show which it is."""

    def __init__(self) -> None:
        self._slow: bool | None = None
        self.gil_share: float | None = None
        """The share of a row's time for which its ops hold the GIL; None if rows do not take
        long."""

    def __call__(self, rows: int, apply: Callable[[range], None]) -> None:
        """Calls `apply` with ranges that cover 0 to `rows`. Raises the error of the first range
        that has one."""

        def seconds_per_row(some: range) -> float:
            began = time.thread_time()
            apply(some)
            return (time.thread_time() - began) / max(len(some), 1)

        begin = 0
        if self._slow is None:
            begin = min(_FIRST, rows)
            self._slow = seconds_per_row(range(begin)) > _SLOW
            if self._slow and rows >= begin + _MEASURED:
                ends = range(begin + 1, begin + 1 + _MEASURED)
                shares = [_gil_share(range(end - 1, end), apply) for end in ends]
                self.gil_share = statistics.median(shares)
                begin = ends.stop - 1
        if self._slow:
            part = max(1, min(_PART, (rows - begin) // _num_threads()))
            parts = [range(at, min(at + part, rows)) for at in range(begin, rows, part)]
            took = list(_pool().map(seconds_per_row, parts))
        else:
            took = [seconds_per_row(range(begin, rows))]
        self._slow = max(took, default=0.0) > _SLOW


def _gil_share(row: range, apply: Callable[[range], Any]) -> float:
    """Lets another thread make a row while this one asks for the GIL all the time, and tells for
    which share of the time it waited. For a core either of them may wait, which does not count."""

    def make() -> float:
        before = _waited_for_a_core()
        apply(row)
        return _waited_for_a_core() - before

    began = time.perf_counter()
    before = time.thread_time() + _waited_for_a_core()
    making = _pool().submit(make)
    while not making.done() and time.perf_counter() < began + _MOST_SECONDS:
        select.select((), (), (), 0)  # gives up the GIL; time.sleep(0) sleeps for 50 us
    seconds = time.perf_counter() - began
    waited = seconds - (time.thread_time() + _waited_for_a_core() - before)
    return min(1.0, max(0.0, waited / max(seconds - making.result(), 1e-9)))


def _waited_for_a_core() -> float:
    """Seconds for which this thread did, which only Linux tells."""
    with contextlib.suppress(OSError):
        return 1e-9 * int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    return 0.0


def _num_threads() -> int:
    return min(THREADS or num_cores(), _MOST_THREADS)


@functools.cache
def _pool() -> ThreadPoolExecutor:
    # not infeed-: no batches own them
    return ThreadPoolExecutor(_num_threads(), "infeed_rows")


os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of its parent's threads


Parser = Callable[[Sequence[bytes]], Mapping[str, Column]]


def parser_of(layout: Layout, keys: Collection[str], *, narrow: bool = False) -> Parser:
    """What makes the features `keys` of n payloads: arrays [n, *shape] according to feature_specs.

    A (None,) feature is Ragged. An optional feature that is absent is 0 or b"", or an empty row.
    narrow: integers of Examples may be int32 where these suffice, which saves a third of the time
    of parsing text. Raises OptionError for an unknown key; the parser raises SchemaError for a
    payload that does not match the layout, such as an Example without a required feature or a
    struct of another length."""
    specs = chosen_specs(layout, keys)
    if keys and isinstance(layout, np.dtype):  # partial: unlike a lambda, it can be pickled
        return functools.partial(struct_columns, layout, specs)
    if keys and isinstance(layout, Schema) and not layout.opaque:
        parser = ExampleParser({key: layout.features[key] for key in keys})
        return parser if narrow else functools.partial(_widened, parser)
    return functools.partial(_opaque_columns, keys)


def _opaque_columns(keys: Collection[str], payloads: Sequence[bytes]) -> Columns:
    return dict.fromkeys(keys, objects(payloads))


def _widened(parser: Parser, payloads: Sequence[bytes]) -> Columns:
    return {key: _wide(column) for key, column in parser(payloads).items()}


def _wide(column: Column) -> Column:
    if isinstance(column, Ragged):
        return Ragged(_int64(column.values), column.lengths)
    return _int64(column) if isinstance(column, np.ndarray) else column


def _int64(values: np.ndarray) -> np.ndarray:
    return values.astype(np.int64) if values.dtype == np.int32 else values
