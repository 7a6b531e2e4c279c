"""Decodes the payloads of a host's rows into a batch: parsing, ops and padding."""

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from pipeline.checks import did_you_mean
from pipeline.decoding.op import Features, Op
from pipeline.decoding.padding import PadTo, padded_specs
from pipeline.decoding.planning import Plan, listed, planned
from pipeline.decoding.rng import Rng
from pipeline.decoding.rows import RowDecoder
from pipeline.description import Renumbering
from pipeline.errors import OptionError, SchemaError
from pipeline.logs import log
from pipeline.spec import (
    BYTES,
    RESERVED,
    SEED,
    UNSEEN,
    ArraySpec,
    Layout,
    delivered,
    feature_specs,
    holds,
    tree_of,
)


class Decoder:
    """Decodes batches; their spec is known before any record is read.

    spec: key -> ArraySpec with the host batch first, including the reserved keys. keys=None takes
    all features, parsed or set by ops, that fit a batch: with a fixed shape, and not bytes. nested:
    batches and spec are nested dicts, with keys split at slashes; arguments still use flat keys.
    seeded: `_seed` is one of the reserved keys."""

    def __init__(
        self,
        layout: Layout,
        host_batch: int,
        *,
        ops: Sequence[Op] = (),
        keys: Iterable[str] | None = None,
        pad_values: Mapping[str, float] | None = None,
        pad_to: Mapping[str, int | PadTo] | None = None,
        offsets: Mapping[str, int] | None = None,
        nested: bool = False,
        seeded: bool = False,
    ) -> None:
        self._ops = listed(ops)
        self.num_ops = len(self._ops)  # and of seeds per record
        pads = {
            key: pad if isinstance(pad, PadTo) else PadTo(pad)
            for key, pad in (pad_to or {}).items()
        }
        plan = planned(padded_specs(feature_specs(layout), pads), self._ops)
        if isinstance(keys, str):
            raise OptionError(
                f"keys={keys!r} is a string; it must be a list of keys. Give [{keys!r}]."
            )
        fitting = [
            key for key, spec in plan.specs.items() if spec.fits_a_batch and not key.startswith("_")
        ]
        taken = sorted(fitting) if keys is None else _checked(tuple(keys), plan)
        if keys is None and not fitting:
            log.warning(
                "no feature fits a batch, so it contains only %s. Features that are bytes, have no "
                "fixed length or start with _: %s. Add an op that makes arrays of a fixed shape, "
                "or give their length in pad_to.",
                ", ".join(RESERVED), ", ".join(sorted(plan.specs)),
            )  # fmt: skip
        offsets = offsets or {}
        self._planned = (layout, plan, pads, offsets)
        self._decoder = RowDecoder(*self._planned, taken, {})
        values = pad_values or {}
        rows = dict[str, ArraySpec]()  # as delivered: 64 bits become 32
        for key in taken:
            spec = plan.specs[key]
            dtype = delivered(spec.dtype)
            if key in offsets and dtype.kind in "iu":
                dtype = np.dtype(np.float32)
            rows[key] = ArraySpec(spec.shape, dtype, values.get(key, spec.pad))
        for key, pad in values.items():
            if key not in rows:
                raise OptionError(
                    f"pad_values has {key!r}, which is not in the batch.{did_you_mean(key, rows)}"
                )
            if not holds(rows[key].dtype, pad):
                raise OptionError(
                    f"pad_values[{key!r}] is {pad!r}, which {rows[key].dtype} cannot hold."
                )
        self._rows = rows
        self._nest = nested_tree if nested else dict[str, Any]
        self._host_batch = host_batch
        self.spec = self._batches_of(self._rows | RESERVED | (SEED if seeded else {}))

    @property
    def stored(self) -> Sequence[str]:
        """The features of a record that are read."""
        return self._decoder.stored

    def renumbered(self, by: Mapping[str, Renumbering]) -> "Decoder":
        """The same, with other numbers in these stored features. Where that hides categories, rows
        have `_unseen`."""
        other = copy(self)
        other._decoder = RowDecoder(*self._planned, self._decoder.keys, by)
        if any(each.hides for each in by.values()):
            other._rows = self._rows | UNSEEN
            other.spec = self.spec | self._batches_of(UNSEEN)
        return other

    def _batches_of(self, rows: Mapping[str, ArraySpec]) -> dict[str, Any]:
        return self._nest(
            {key: replace(row, shape=(self._host_batch, *row.shape)) for key, row in rows.items()}
        )

    def __call__(
        self,
        payloads: Sequence[bytes],
        seeds: np.ndarray,
        index: np.ndarray,
        until: float = math.inf,
    ) -> dict[str, Any]:
        """The features of rows: per key, an array [rows, ...], otherwise with the spec's shape and
        dtype.

        payloads: of the real rows in order. seeds: int32 [n, ops, 2]. index: int32 [rows], -1 for
        padding rows, which contain only pad values and do not pass through ops. until: see
        RowDecoder.decode, which also says what this raises."""
        real = index >= 0
        rows = self._decoder.decode(payloads, seeds, index[real], until)
        return self._nest(rows if real.all() else self._padded(rows, real))

    def decode_one(self, record: Features, rngs: Sequence[Rng]) -> dict[str, Any]:
        """The features of one record, without a dimension of rows. record: its features `stored`.
        See RowDecoder.decode_one."""
        return self._nest(self._decoder.decode_one(record, rngs))

    @property
    def gil_share(self) -> float | None:
        """The share of a row's time for which its ops hold the GIL; None if rows do not take
        long."""
        return self._decoder.threads.gil_share

    def rows_of(self, keys: Sequence[str]) -> RowDecoder:
        """Decodes any number of rows to these features of the batch alone, by their flat keys."""
        return RowDecoder(*self._planned, keys, self._decoder.renumbered, only_needed=True)

    def _padded(self, rows: Features, real: np.ndarray) -> Features:
        padded = {}
        for key, row in self._rows.items():
            shape: Any = row.shape
            padded[key] = np.full((len(real), *shape), row.pad, row.dtype)
            padded[key][real] = rows[key]
        return padded


def _checked(keys: tuple[str, ...], plan: Plan) -> list[str]:
    specs = plan.specs
    for key in keys:
        if key in plan.dropped:
            raise OptionError(
                f"keys has {key!r}, which {plan.dropped[key]!r} dropped. Leave it out of keys, or "
                "keep it in the ops."
            )
        if key not in specs:
            raise OptionError(f"keys has {key!r}, which is neither in the records nor set by an op."
                              f"{did_you_mean(key, specs)}")  # fmt: skip
        if key.startswith("_"):
            raise OptionError(
                f"keys has {key!r}: names that start with _ are reserved. Rename it in an op."
            )
        if not specs[key].fits_a_batch:
            number = specs[key].dtype != BYTES
            raise SchemaError(
                f"{key!r} {'has no fixed length' if number else 'is bytes'}, which devices do not "
                f"support. {'Give its length in pad_to, add' if number else 'Add'} an op that "
                "gives it a fixed shape (such as DecodeJpeg for an image), or leave it out of keys."
            )
    return sorted(set(keys))


def nested_tree(flat: Mapping[str, Any]) -> dict[str, Any]:
    """{"image/class/label": x, "_mask": y} as {"image": {"class": {"label": x}}, "_mask": y}.

    Raises OptionError if a key is both a value and the parent of another key."""
    for key in flat:
        folders = key.split("/")
        for depth in range(1, len(folders)):
            if (folder := "/".join(folders[:depth])) in flat:
                raise OptionError(
                    f"a nested batch cannot have both {folder!r}, a value, and {key!r} inside it. "
                    "Leave one out of keys, or set the value under another name in an op "
                    f"(into='{folder}/value')."
                )
    return tree_of((key.split("/"), value) for key, value in flat.items())
