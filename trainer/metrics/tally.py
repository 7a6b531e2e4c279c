"""Computes a task's metrics: the values of a batch's records that count, and for each Metric a
tally over the epoch.

Tallies stay on the devices from step to step, so each takes its memory once, not per step."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pipeline.errors import InputError
from pipeline.spec import CRC, INDEX, MASK
from trainer.mesh.batch_spec import ROWS_FIRST, BatchAxes
from trainer.metrics.labels import counting, outside_rows
from trainer.task import Batch, Metric, Metrics

# Values of padding rows. Tasks normally see the first; evaluate(check_padding=True) also shows them
# the others.
PADDINGS = ("zeros", "NaN (in floats)", "the largest values")

LOSSES = "_losses"
# V: bfloat16
WIDE = {"b": jnp.int32, "i": jnp.int32, "u": jnp.uint32, "f": jnp.float32, "V": jnp.float32}


def num_rows(mask: Array) -> Array:
    """Number of rows, int32, where `mask` is above 0."""
    return jnp.sum(mask > 0, dtype=jnp.int32)


def bad_rows(batch: Batch) -> Array:
    """Number of rows, int32, of bad records that the input left out: masked, but with an index,
    unlike padding."""
    return jnp.sum(_bad(batch), dtype=jnp.int32)


def _bad(batch: Batch) -> Array:
    if INDEX not in batch:
        return jnp.zeros(batch[MASK].shape, bool)
    return (batch[INDEX] >= 0) & ~(batch[MASK] > 0)


def masked_sum(values: Array, mask: Array) -> Array:
    """The float32 sum of `values` [b] where `mask` is above 0. Uses where, as 0 * NaN is NaN:
    others may be NaN."""
    return jnp.sum(jnp.where(mask > 0, values.astype(jnp.float32), 0.0))


def masked_mean(values: Array, mask: Array) -> Array:
    """masked_sum divided by the number of rows that count; 0 if none does."""
    return masked_sum(values, mask) / jnp.maximum(jnp.sum(mask > 0), 1)


def due_crc(batch: Batch) -> Array:
    """The uint32 sum mod 2**32 of the crcs of rows that count, as read, and of rows left out, as
    expected."""
    if CRC not in batch:
        return jnp.uint32(0)
    return jnp.sum(jnp.where((batch[MASK] > 0) | _bad(batch), batch[CRC], 0), dtype=jnp.uint32)


def blank_padding(
    batch: Batch, padding: int | Array = 0, axes: BatchAxes = ROWS_FIRST
) -> dict[str, Any]:
    """`batch` with PADDINGS[padding], by default zeros, in every row that does not count.

    A NaN there would reach gradients even through `where`, whose gradient is 0 times the NaN."""
    mask = batch[MASK] > 0

    def blank(leaf: Array, axis: int) -> Array:
        shaped = mask.reshape((1,) * axis + mask.shape + (1,) * (leaf.ndim - axis - 1))
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            of_paddings = [0, np.nan, jnp.finfo(leaf.dtype).max]
        else:
            of_paddings = [0, 0, 1 if leaf.dtype.kind == "b" else jnp.iinfo(leaf.dtype).max]
        values: Any = np.array(of_paddings, leaf.dtype)
        if not isinstance(padding, int):
            values = jnp.asarray(values)
        return jnp.where(shaped, leaf, values[padding])

    arrays = dict(batch)
    own = {key: arrays.pop(key) for key in batch if key.startswith("_")}
    return axes.map(blank, arrays) | own


class Tally(NamedTuple):
    """A Metric's state so far. low: for each leaf, the rounding error of its float32 sum; None if
    it is exact."""

    state: Any
    low: list[Array | None]


def mergeable(metrics: Metrics) -> dict[str, Metric]:
    """The metrics that are a Metric, not a function."""
    return {name: metric for name, metric in metrics.items() if isinstance(metric, Metric)}


def per_record(losses: Array, outputs: Any, batch: Batch, metrics: Metrics) -> dict[str, Array]:
    """The loss, the values of every function and outside_rows as arrays [b]. Raises InputError for
    another shape."""
    values = {"loss": losses}
    for name, metric in metrics.items():
        if not isinstance(metric, Metric):
            with _naming(name):
                values[name] = metric(outputs, {**batch, LOSSES: losses})
    values |= outside_rows(outputs, batch, metrics)
    for name, value in values.items():
        if jnp.shape(value) != batch[MASK].shape:
            named = name if name == "loss" else f"the metric {name!r}"
            raise InputError(
                f"{named} has the shape {list(jnp.shape(value))}; expected "
                f"{list(batch[MASK].shape)}, one value per record. The trainer computes the mean "
                "itself, without padding."
            )
    return values


def check_metrics(losses: Array, outputs: Any, batch: Batch, metrics: Metrics) -> None:
    """Raises now what a Metric would raise for such a batch in an evaluation, hours later. Computes
    nothing."""
    jax.eval_shape(partial(empty_tallies, metrics=metrics), losses, outputs, dict(batch))


def empty_tallies(
    losses: Any, outputs: Any, batch: Batch, metrics: Metrics
) -> tuple[dict[str, Tally], dict[str, Array]]:
    """The tallies before the first batch, and whether each is neutral, bool []: unchanged when
    merged with itself.

    Uses only shapes and dtypes of the arguments. Runs under jit."""
    blank = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (losses, outputs, dict(batch))
    )
    tallies = {}
    neutral = {}
    for name, metric in mergeable(metrics).items():
        with _naming(name):
            state = _state(metric, *blank)
            leaves = jax.tree.leaves(state)
            sums = _is_sum(metric)
            low = [
                jnp.zeros_like(leaf) if sums and jnp.issubdtype(leaf.dtype, jnp.floating) else None
                for leaf in leaves
            ]
            tallies[name] = Tally(state, low)
            twice = jax.tree.leaves(_merged(metric, tallies[name], state).state)
        same = [jnp.array_equal(a, b, equal_nan=True) for a, b in zip(leaves, twice, strict=True)]
        neutral[name] = jnp.all(jnp.array(same))
    return tallies, neutral


def with_batch(
    tallies: Mapping[str, Tally], losses: Array, outputs: Any, batch: Batch, metrics: Metrics
) -> dict[str, Tally]:
    """The tallies after adding this batch's rows that count and have their label."""
    after = {}
    for name, metric in mergeable(metrics).items():
        with _naming(name):
            state = _state(metric, losses, outputs, batch)
            after[name] = _merged(metric, tallies[name], state)
    return after


def computed(
    tallies: Mapping[str, Any], metrics: Metrics
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Scalars and arrays by name, from tallies on the host. Raises InputError for any other
    value."""
    scalars: dict[str, float] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, metric in mergeable(metrics).items():
        with _naming(name):
            value = metric.compute(_widened(*tallies[name]))
        parts = {name: value}
        if isinstance(value, Mapping):
            parts = {f"{name}/{key}": part for key, part in value.items()}
        for key, part in parts.items():
            array = np.asarray(part)
            if array.dtype.kind not in "biuf":
                raise InputError(
                    f"the metric {key} computes {part!r}. Allowed: a number, an array of numbers, "
                    "or a dict of these."
                )
            if array.ndim:
                arrays[key] = array
            else:
                scalars[key] = float(array)
    return scalars, arrays


def totals_counted(tallies: Mapping[str, Any], metrics: Metrics) -> dict[str, Mapping[str, int]]:
    """The totals of every Metric by its name, from tallies on the host."""
    totals = {}
    for name, metric in mergeable(metrics).items():
        with _naming(name):
            totals[name] = metric.totals(_widened(*tallies[name]))
    return totals


@contextmanager
def _naming(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"in the metric {name!r}")
        raise


def _state(metric: Metric, losses: Array, outputs: Any, batch: Batch) -> Any:
    state = metric.from_batch(outputs, {**batch, LOSSES: losses}, counting(batch) > 0)
    return jax.tree.map(_wide, state)


def _wide(leaf: Any) -> Array:
    """The leaf in 32 bits, so that counts do not overflow, and not weakly typed, which a loop could
    not carry."""
    leaf = jnp.asarray(leaf)
    if leaf.dtype.kind not in WIDE:
        raise InputError(
            f"a state contains {leaf.dtype} {list(leaf.shape)}. Allowed: integers, floats and "
            "booleans."
        )
    return jax.lax.convert_element_type(leaf, WIDE[leaf.dtype.kind])


def _is_sum(metric: Metric) -> bool:
    return type(metric).merge is Metric.merge


def _merged(metric: Metric, tally: Tally, state: Any) -> Tally:
    if _is_sum(metric):
        leaves, tree = jax.tree.flatten(tally.state)
        parts = zip(leaves, tally.low, jax.tree.leaves(state), strict=True)
        sums = [_add(*part) for part in parts]
        return Tally(tree.unflatten([total for total, _ in sums]), [low for _, low in sums])
    merged = jax.tree.map(_wide, metric.merge(tally.state, state))
    if _kinds(merged) != _kinds(state):
        raise InputError(
            f"merge returns {_kinds(merged)} for two states {_kinds(state)}. It must return the "
            "same structure."
        )
    return Tally(merged, tally.low)


def _kinds(state: Any) -> Any:
    return jax.tree.map(lambda leaf: f"{leaf.dtype} {list(leaf.shape)}", state)


def _add(total: Array, low: Array | None, value: Array) -> tuple[Array, Array | None]:
    """total + low + value as two float32 numbers with 48 bits together; integers are added
    exactly."""
    rounded = total + value
    if low is None:
        return rounded, None
    # Knuth's TwoSum: the rounding error is a float32, too. Then Dekker's, as `low` may have grown.
    back = rounded - total
    rest = low + ((total - (rounded - back)) + (value - back))
    rest = jnp.where(jnp.isfinite(rounded), rest, 0)
    after = rounded + rest
    return after, rest - (after - rounded)


def _widened(state: Any, lows: list[np.ndarray | None]) -> Any:
    leaves, tree = jax.tree.flatten(state)
    totals = []
    for leaf, low in zip(leaves, lows, strict=True):
        total = leaf.astype(np.float64 if leaf.dtype.kind == "f" else np.int64)
        if low is not None:  # an infinite sum has no rounding error
            total = np.where(np.isfinite(total), total + low, total)
        totals.append(total)
    return tree.unflatten(totals)
