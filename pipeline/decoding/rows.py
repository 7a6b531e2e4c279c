"""Turns records into the features of any number of rows: parsing, ops, and 32-bit numbers.

The Decoder makes batches of them; an exported model is compared with their features."""

import functools
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.decoding.columns import Column, Columns, Ragged, renumbered
from pipeline.decoding.examples import ExampleParser
from pipeline.decoding.op import Features
from pipeline.decoding.padding import PadTo, pad_rows
from pipeline.decoding.planning import Plan, Step
from pipeline.decoding.rng import Rng, rngs_of
from pipeline.decoding.row_threads import RowThreads
from pipeline.description import Renumbering
from pipeline.errors import SchemaError
from pipeline.parsing import struct_columns
from pipeline.shards.schema import Schema
from pipeline.spec import UNSEEN, Layout, centered, chosen_specs, delivered, objects


class TooSlow(Exception):  # noqa: N818 (not an error: the rows are decoded in smaller parts)
    """The ops exceeded their time limit."""


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
        self._parse = parser_of(layout, self.stored, wide=bool(self.steps))
        self.threads = RowThreads()

    def decode(
        self,
        payloads: Sequence[bytes],
        seeds: np.ndarray,
        record_ids: np.ndarray,
        until: float = math.inf,
    ) -> Features:
        """The features of these records. seeds: int32 [n, ops, 2]. Raises SchemaError, which does
        not name a record; TooSlow if the ops are not done `until` that time.monotonic()."""
        parsed = self._parse(payloads)
        numbers, hidden = renumbered(parsed, self.renumbered, record_ids)
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


Parser = Callable[[Sequence[bytes]], Mapping[str, Column]]


def parser_of(layout: Layout, keys: Collection[str], *, wide: bool = True) -> Parser:
    """What makes the features `keys` of n payloads: arrays [n, *shape] according to feature_specs.

    A (None,) feature is Ragged. An optional feature that is absent is 0 or b"", or an empty row.
    wide: as of ExampleParser. Raises OptionError for an unknown key; the parser raises SchemaError
    for a payload that does not match the layout, such as an Example without a required feature or a
    struct of another length."""
    specs = chosen_specs(layout, keys)
    if keys and isinstance(layout, np.dtype):  # partial: unlike a lambda, it can be pickled
        return functools.partial(struct_columns, layout, specs)
    if keys and isinstance(layout, Schema) and not layout.opaque:
        return ExampleParser({key: layout.features[key] for key in keys}, wide=wide)
    return functools.partial(_opaque_columns, keys)


def _opaque_columns(keys: Collection[str], payloads: Sequence[bytes]) -> Columns:
    return dict.fromkeys(keys, objects(payloads))
