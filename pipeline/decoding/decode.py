"""Decodes the payloads of a host's rows into a batch: parsing, ops and padding, one call of a graph function per batch.

A DatasetInput runs it from its own thread or inside tf.data: the same function, so the same batches."""

import functools
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pipeline.decoding.op import Features, Op, Specs
from pipeline.decoding.padding import PadTo, padded_specs
from pipeline.decoding.planning import Plan, listed, planned
from pipeline.decoding.rows import RowDecoder
from pipeline.errors import OptionError, SchemaError, did_you_mean
from pipeline.logs import logger
from pipeline.spec import BYTES, RESERVED, SEED, ArraySpec, Layout, delivered, feature_specs, holds
from pipeline.tf_cpu import tf

log = logger("pipeline")

_TRACING = threading.Lock()
_STACK_LINE = re.compile(r'Graph execution error|Detected at node|  File "|\s*$')
_GRAPH_NAMES = re.compile(
    r"\{\{(function_)?node [^}]*\}\}|\[\[.*?\]\]|\[Op:.*?\]|INVALID_ARGUMENT:|<stack traces unavailable>"
)
_ASSERTION = re.compile(r"assertion failed: \[(.*?)\]")
# Messages of the ops that decode images; they state neither the problem nor the remedy.
_DAMAGED = re.compile(r"(Invalid|Failed to decode) (?P<kind>JPEG|PNG|WebP)\b")
OTHER_FORMATS = " DecodeJpeg decodes nothing but JPEG; DecodeResize also decodes PNG and WebP."


class Decoder:
    """Decodes batches; their spec is known before any record is read.

    spec: key -> ArraySpec with the host batch first, including the reserved keys. keys=None takes all features, parsed
    or set by ops, that fit a batch: with a fixed shape, and not bytes. nested: batches and spec are nested dicts, with
    keys split at slashes; arguments still use flat keys. seeded: `_seed` is one of the reserved keys."""

    def __init__(
        self,
        layout: Layout,
        host_batch: int,
        *,
        ops: Sequence[Op] = (),
        keys: Iterable[str] | None = None,
        pad_values: Mapping[str, float] | None = None,
        pad_to: Mapping[str, int | PadTo] | None = None,
        nested: bool = False,
        seeded: bool = False,
    ) -> None:
        self._host_batch, self._ops = host_batch, listed(ops)
        self.num_ops = len(self._ops)  # and of seeds per record
        pads = {key: pad if isinstance(pad, PadTo) else PadTo(pad) for key, pad in (pad_to or {}).items()}
        plan = planned(padded_specs(feature_specs(layout), pads), self._ops)
        if isinstance(keys, str):
            raise OptionError(f"keys={keys!r} is a string; it must be a list of keys. Give [{keys!r}].")
        fitting = [key for key, spec in plan.specs.items() if spec.fits_a_batch and not key.startswith("_")]
        taken = sorted(fitting) if keys is None else _checked(tuple(keys), plan)
        if keys is None and not fitting:
            log.warning(
                "no feature fits a batch, so it contains only %s. Features that are bytes, have no fixed length or "
                "start with _: %s. Add an op that makes arrays of a fixed shape, or give their length in pad_to.",
                ", ".join(RESERVED), ", ".join(sorted(plan.specs)),
            )  # fmt: skip
        self._planned, self._decoder = (layout, plan, pads), RowDecoder(layout, plan, pads, taken)
        self._rows = _row_specs(plan.specs, taken, pad_values or {})
        self._nest = nested_tree if nested else dict[str, Any]
        rows = self._rows | RESERVED | (SEED if seeded else {})
        self.spec: Mapping[str, Any] = self._nest(
            {key: replace(row, shape=(host_batch, *row.shape)) for key, row in rows.items()}
        )
        self.signature = (
            tf.TensorSpec([None], tf.string),
            tf.TensorSpec([None, len(self._ops), 2], tf.int32),
            tf.TensorSpec([host_batch], tf.int32),
        )

    @functools.cached_property
    def _graph(self) -> Any:
        with _TRACING:  # the first of several decoding threads traces, the others find its graph
            if all(type(op).__module__.startswith("pipeline.decoding.") for op in self._ops):
                return _shared_graph(_Described(self, repr(vars(self))))
            return _traced(self)  # a user's op may depend on state that its repr does not show

    def __call__(self, payloads: Sequence[bytes], seeds: np.ndarray, index: np.ndarray) -> dict[str, Any]:
        """See decode; NumPy in and out. Raises SchemaError with TensorFlow's reason, which does not name a record."""
        if not self._rows:  # an empty graph takes 45 ms
            return {}
        try:
            batch = self._graph(tf.constant(payloads, tf.string, [len(payloads)]), seeds, index)
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError) as e:  # see reason
            raise SchemaError(reason(e)) from e
        return tf.nest.map_structure(lambda value: value.numpy(), batch)

    def decode(self, payloads: Any, seeds: Any, index: Any) -> Features:
        """The features of one batch, in a graph: per key, a tensor with the spec's shape and dtype.

        payloads: string [n], the real rows in order. seeds: int32 [n, ops, 2]. index: int32 [host_batch], -1 for
        padding rows, which contain only pad values and do not pass through ops."""
        rows = self._decoder.decode(payloads, seeds)
        count = tf.shape(payloads)[0]
        # Padding costs a copy, which is made only if there is padding: in the last batch of an evaluation.
        batch = tf.cond(count == self._host_batch, lambda: rows, lambda: self._padded(rows, index, count))
        shapes = {key: (self._host_batch, *row.shape) for key, row in self._rows.items()}
        return self._nest({key: tf.ensure_shape(value, shapes[key]) for key, value in batch.items()})

    def rows_of(self, keys: Sequence[str]) -> RowDecoder:
        """Decodes any number of rows to these features of the batch alone, by their flat keys."""
        return RowDecoder(*self._planned, keys, only_needed=True)

    def _padded(self, rows: Features, index: Any, count: Any) -> Features:
        real = index >= 0
        source = tf.where(real, tf.cumsum(tf.cast(real, tf.int32)) - 1, count)
        padded = {}
        for key, value in rows.items():
            row = self._rows[key]
            padding = tf.constant(np.full((1, *row.shape), row.pad, row.dtype))
            padded[key] = tf.gather(tf.concat([value, padding], 0), source)
        return padded


@dataclass(frozen=True)
class _Described:
    """A Decoder that compares equal to all with the same configuration."""

    decoder: Decoder = field(compare=False)
    configuration: str


@functools.lru_cache(maxsize=16)
def _shared_graph(described: _Described) -> Any:
    """An evaluation every thousand steps makes a Decoder each time; tracing and optimizing its graph takes 0.4 s."""
    return _traced(described.decoder)


def _traced(decoder: Decoder) -> Any:
    # Calling the tf.function itself takes 0.3 ms more, and TensorFlow warns of retracing from the 5th Decoder on.
    function = tf.function(decoder.decode, input_signature=decoder.signature, autograph=False)
    return function.get_concrete_function()


def _checked(keys: tuple[str, ...], plan: Plan) -> list[str]:
    specs = plan.specs
    for key in keys:
        if key in plan.dropped:
            raise OptionError(
                f"keys has {key!r}, which {plan.dropped[key]!r} dropped. Leave it out of keys, or keep it in the ops."
            )
        if key not in specs:
            raise OptionError(f"keys has {key!r}, which is neither in the records nor set by an op."
                              f"{did_you_mean(key, specs)}")  # fmt: skip
        if key.startswith("_"):
            raise OptionError(f"keys has {key!r}: names that start with _ are reserved. Rename it in an op.")
        if not specs[key].fits_a_batch:
            number = specs[key].dtype != BYTES
            raise SchemaError(
                f"{key!r} {'has no fixed length' if number else 'is bytes'}, which devices do not support. "
                f"{'Give its length in pad_to, add' if number else 'Add'} an op that gives it a fixed shape "
                "(such as DecodeJpeg for an image), or leave it out of keys."
            )
    return sorted(set(keys))


def _row_specs(specs: Specs, keys: Iterable[str], pad_values: Mapping[str, float]) -> dict[str, ArraySpec]:
    """One row of each key as delivered: 64 bits become 32, with its pad value."""
    rows = {}
    for key in keys:
        dtype = delivered(specs[key].dtype)
        rows[key] = ArraySpec(specs[key].shape, dtype, pad_values.get(key, specs[key].pad))
    for key, pad in pad_values.items():
        if key not in rows:
            raise OptionError(f"pad_values has {key!r}, which is not in the batch.{did_you_mean(key, rows)}")
        if not holds(rows[key].dtype, pad):
            raise OptionError(f"pad_values[{key!r}] is {pad!r}, which {rows[key].dtype} cannot hold.")
    return rows


def nested_tree(flat: Mapping[str, Any]) -> dict[str, Any]:
    """{"image/class/label": x, "_mask": y} as {"image": {"class": {"label": x}}, "_mask": y}.

    Raises OptionError if a key is both a value and the parent of another key."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        folders = key.split("/")
        for depth in range(1, len(folders)):
            if (folder := "/".join(folders[:depth])) in flat:
                raise OptionError(
                    f"a nested batch cannot have both {folder!r}, a value, and {key!r} inside it. Leave one out of "
                    f"keys, or set the value under another name in an op (into='{folder}/value')."
                )
        at = tree
        for folder in folders[:-1]:
            at = at.setdefault(folder, {})
        at[folders[-1]] = value
    return tree


def reason(error: Any) -> str:
    """The message of TensorFlow's error, without the names of graph nodes and the stack that built them.

    error: InvalidArgumentError, or the UnicodeDecodeError that replaces it when the message quotes bytes of a record
    that are not UTF-8."""
    message = error.object.decode(errors="replace") if isinstance(error, UnicodeDecodeError) else error.message
    if "root error(s) found" in message:  # the first cancelled the others
        message = message.partition("(0) ")[2].partition("\n  (1) ")[0]
    lines = [line for line in message.splitlines() if not _STACK_LINE.match(line)]
    text = _ASSERTION.sub(r"\1", _GRAPH_NAMES.sub("", " ".join(lines)))
    text = " ".join(text.replace("\\'", "'").split())
    if found := _DAMAGED.search(text):
        return (
            f"the {found['kind']} image is damaged or truncated. Replace it and convert the data again, or leave such "
            f"records out with on_error.{OTHER_FORMATS if found['kind'] == 'JPEG' else ''} TensorFlow reports: {text}"
        )
    return text
