"""Batch normalization over a chosen number of rows, without rows of padding."""

import jax.numpy as jnp
from flax import nnx
from jax import Array, lax

from pipeline.errors import OptionError

__all__ = ["BatchNorm"]


class BatchNorm(nnx.Module):
    """Normalizes each feature by the mean and variance over rows and positions, then scales and shifts it.

    span: rows over which statistics are taken in training: rows 0..span - 1, the next span rows, and so on. It has to
    divide the batch; None: all rows. Under jit that is the global batch, which is another training than with the 32 to
    256 rows of a device that published results have, and takes a collective per layer; a span that divides a device's
    rows takes none. momentum: of the running statistics, which evaluation uses. They are float32, as are all
    statistics; the result has `dtype`, by default that of x. zero_scale: begin with scale 0, as the last of a residual
    block does. scale and bias are parameters; mean and var are the running statistics, used if use_running_average."""

    def __init__(
        self,
        features: int,
        *,
        rngs: nnx.Rngs,
        span: int | None = None,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        zero_scale: bool = False,
        dtype: jnp.dtype | None = None,
    ) -> None:
        del rngs  # nothing is random; flax's layers take it, too
        self.scale = nnx.Param(jnp.zeros(features) if zero_scale else jnp.ones(features))
        self.bias = nnx.Param(jnp.zeros(features))
        self.mean = nnx.BatchStat(jnp.zeros(features))
        self.var = nnx.BatchStat(jnp.ones(features))
        self.span, self.momentum, self.epsilon, self.dtype = span, momentum, epsilon, dtype
        self.use_running_average = False  # model.eval() sets it

    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        """x: [b, ..., features]. mask: [b], above 0 where a row counts; default: all count.

        Raises OptionError if the span does not divide the rows."""
        if self.use_running_average:
            return self._normalized(x, self.mean.get_value(), self.var.get_value())
        span = self.span or len(x)
        if len(x) % span:
            raise OptionError(f"a span of {span} rows does not divide the batch of {len(x)} rows. Choose another one.")
        counts = jnp.ones(len(x), bool) if mask is None else mask > 0
        groups = x.reshape(-1, span, *x.shape[1:])
        mean, var, rows = _statistics(groups, counts.reshape(-1, span))
        self._run_on(mean, var, rows)
        shape = (len(groups), *[1] * (x.ndim - 1), x.shape[-1])
        return self._normalized(groups, mean.reshape(shape), var.reshape(shape)).reshape(x.shape)

    def _normalized(self, x: Array, mean: Array, var: Array) -> Array:
        factor = lax.rsqrt(var + self.epsilon) * self.scale.get_value()
        return ((x - mean) * factor + self.bias.get_value()).astype(self.dtype or x.dtype)

    def _run_on(self, mean: Array, var: Array, rows: Array) -> None:
        """Adds the average of the groups that have rows to the running statistics."""
        weights = (rows > 0) / jnp.maximum(jnp.sum(rows > 0), 1)
        kept = jnp.where(jnp.any(rows > 0), self.momentum, 1.0)
        for running, values in ((self.mean, mean), (self.var, var)):
            running.set_value(kept * running.get_value() + (1 - kept) * (weights @ values))


def _statistics(groups: Array, counts: Array) -> tuple[Array, Array, Array]:
    """Mean and variance [groups, features] of the rows that count, in float32, and the number of these rows."""
    over = tuple(range(1, groups.ndim - 1))
    rows = jnp.sum(counts, axis=1)
    positions = groups[0, 0, ..., 0].size
    shaped = counts.reshape(*counts.shape, *[1] * (groups.ndim - 2))
    values = jnp.where(shaped, groups.astype(jnp.float32), 0)
    divisor = (jnp.maximum(rows, 1) * positions)[:, None]
    mean = jnp.sum(values, over) / divisor
    square = jnp.sum(values**2, over) / divisor
    return mean, jnp.maximum(square - mean**2, 0), rows
