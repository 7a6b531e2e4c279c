"""Residual networks: ResNet-18 and ResNet-50 v1.5 for photographs, ResNet-20 for images of 32x32.

He et al. 2015, https://arxiv.org/abs/1512.03385. v1.5: a bottleneck strides in its 3x3 convolution,
not its first.

Batch normalization is over a chosen number of rows, without rows of padding."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax.numpy as jnp
from flax import nnx
from jax import Array, lax

from pipeline.errors import OptionError
from trainer.models.pixels import STATISTICS, Statistics, normalized

__all__ = ["BatchNorm"]

# https://arxiv.org/abs/1502.01852
HE_INIT = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")
HEAD_INIT = nnx.initializers.normal(0.01)  # Goyal et al. 2017, https://arxiv.org/abs/1706.02677


class BatchNorm(nnx.Module):
    """Normalizes each feature by the mean and variance over rows and positions, then scales and
    shifts it.

    span: rows over which statistics are taken in training: rows 0..span - 1, the next span rows,
    and so on. It has to divide the batch; None: all rows. Under jit that is the global batch, which
    is another training than with the 32 to 256 rows of a device that published results have, and
    takes a collective per layer; a span that divides a device's rows takes none. momentum: of the
    running statistics, which evaluation uses. They are float32, as are all statistics; the result
    has `dtype`, by default that of x. epsilon: is added to the variance. zero_scale: begin with
    scale 0, as the last of a residual block does. scale and bias are parameters; mean and var are
    the running statistics, used if use_running_average."""

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
        self.span = span
        self.momentum = momentum
        self.epsilon = epsilon
        self.dtype = dtype
        self.use_running_average = False  # model.eval() sets it

    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        """x: [b, ..., features]. mask: [b], above 0 where a row counts; default: all count.

        Raises OptionError if the span does not divide the rows."""
        if self.use_running_average:
            return self._normalized(x, self.mean.get_value(), self.var.get_value())
        span = self.span or len(x)
        if len(x) % span:
            raise OptionError(
                f"a span of {span} rows does not divide the batch of {len(x)} rows. Choose another "
                "one."
            )
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
        momentum = jnp.where(jnp.any(rows > 0), self.momentum, 1.0)
        for running, values in ((self.mean, mean), (self.var, var)):
            running.set_value(momentum * running.get_value() + (1 - momentum) * (weights @ values))


def _statistics(groups: Array, counts: Array) -> tuple[Array, Array, Array]:
    """Mean and variance [groups, features] of the rows that count, in float32, and the number of
    these rows."""
    over = tuple(range(1, groups.ndim - 1))
    rows = jnp.sum(counts, axis=1)
    positions = groups[0, 0, ..., 0].size
    shaped = counts.reshape(*counts.shape, *[1] * (groups.ndim - 2))
    values = jnp.where(shaped, groups.astype(jnp.float32), 0)
    divisor = (jnp.maximum(rows, 1) * positions)[:, None]
    mean = jnp.sum(values, over) / divisor
    square = jnp.sum(values**2, over) / divisor
    return mean, jnp.maximum(square - mean**2, 0), rows


@dataclass(frozen=True)
class BlockConv:
    """A convolution of a block. factor: its channels, as a multiple of the stage's width. strided:
    whether it has the block's stride."""

    kernel: int
    factor: int = 1
    strided: bool = False


BASIC = (BlockConv(3, strided=True), BlockConv(3))
BOTTLENECK = (BlockConv(1), BlockConv(3, strided=True), BlockConv(1, factor=4))


@dataclass(frozen=True)
class ResNetShape:
    """What distinguishes one residual network from another.

    depths, widths: blocks and channels of each stage. block: its convolutions. stem: "photo", a
    strided 7x7 and a max pooling; "small", a 3x3. shortcut, where a block changes the shape:
    "project", a 1x1 convolution and a batch norm; "pad", every stride-th position with channels of
    zeros added: option A of the paper, which has no parameters."""

    depths: tuple[int, ...]
    widths: tuple[int, ...] = (64, 128, 256, 512)
    block: tuple[BlockConv, ...] = BASIC
    stem: Literal["photo", "small"] = "photo"
    shortcut: Literal["project", "pad"] = "project"


RESNETS = {
    "resnet18": ResNetShape((2, 2, 2, 2)),
    "resnet50": ResNetShape((3, 4, 6, 3), block=BOTTLENECK),
    "resnet20": ResNetShape((3, 3, 3), (16, 32, 64), stem="small", shortcut="pad"),
}
"""By name. With 1000 classes, resnet18 has 11,689,512 parameters and resnet50 25,557,032, as
torchvision counts them; with 10 classes resnet20 has 269,722, the 0.27 M of the paper's table 6."""


class ResNet(nnx.Module):
    """Logits from images: a stem, stages of residual blocks, the mean over positions, and a dense
    head.

    Arrays are named "stem/conv/kernel", "stages/1/0/convs/2/kernel" (the second convolution of the
    first block of stage 1), "stages/1/0/norms/2/scale", "head/kernel"; stages and convolutions
    count from 1, as in torchvision. Padding of convolutions is symmetric, as there; flax's and
    tensorflow/tpu's pad one row less before strided ones. channels: 3 (RGB) or 1 (grey). bn_span:
    rows over which batch norms take their statistics in training; None: all. zero_last_scale: the
    last batch norm of each block begins with scale 0, so that blocks begin as identities
    (https://arxiv.org/abs/1706.02677). Batch norms have momentum 0.9 and epsilon 1e-5. statistics:
    means and deviations that normalize images."""

    def __init__(
        self,
        shape: ResNetShape,
        num_classes: int,
        rngs: nnx.Rngs,
        *,
        channels: int = 3,
        bn_span: int | None = None,
        zero_last_scale: bool = True,
        statistics: Statistics = STATISTICS["imagenet"],
    ) -> None:
        self.statistics = statistics
        self.pools = shape.stem == "photo"
        kernel, stride = (7, 2) if self.pools else (3, 1)
        features = shape.widths[0]
        norm = partial(BatchNorm, rngs=rngs, span=bn_span)
        self.stem = ConvNorm(channels, features, kernel, stride, rngs, norm)
        self.stages = nnx.Dict()
        for number, (depth, width) in enumerate(zip(shape.depths, shape.widths, strict=True), 1):
            blocks = nnx.List()
            for block in range(depth):
                stride = 2 if number > 1 and block == 0 else 1
                blocks.append(Block(shape, features, width, stride, rngs, norm, zero_last_scale))
                features = width * shape.block[-1].factor
            self.stages[str(number)] = blocks
        self.head = nnx.Linear(features, num_classes, kernel_init=HEAD_INIT, rngs=rngs)

    def __call__(self, images: Array, mask: Array | None = None) -> Array:
        """Logits [b, num_classes] for images [b, height, width, channels] in 0..255, uint8 or
        float.

        They are normalized with the statistics, grey ones with the averages of these. mask: [b],
        above 0 where a row counts; other rows do not affect the logits of these or the running
        statistics. Default: all count."""
        x = nnx.relu(self.stem(normalized(images, self.statistics), mask))
        if self.pools:
            x = nnx.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))  # pyright: ignore[reportArgumentType]
        for number in range(1, len(self.stages) + 1):
            for block in self.stages[str(number)]:
                x = block(x, mask)
        return self.head(jnp.mean(x, (1, 2)))


class Block(nnx.Module):
    """Convolutions with batch norms, added to the input or to its shortcut, as `shape` says."""

    def __init__(
        self,
        shape: ResNetShape,
        channels: int,
        width: int,
        stride: int,
        rngs: nnx.Rngs,
        norm: Callable[..., BatchNorm],
        zero_last_scale: bool,
    ) -> None:
        self.convs = nnx.Dict()
        self.norms = nnx.Dict()
        features = channels
        for number, conv in enumerate(shape.block, 1):
            before = features
            features = width * conv.factor
            self.convs[str(number)] = _conv(
                before, features, conv.kernel, stride if conv.strided else 1, rngs
            )
            last = number == len(shape.block)
            self.norms[str(number)] = norm(features, zero_scale=last and zero_last_scale)
        projects = shape.shortcut == "project" and (stride > 1 or features != channels)
        self.shortcut = (
            ConvNorm(channels, features, 1, stride, rngs, norm)
            if projects
            else PaddedShortcut(stride, features - channels)
        )

    def __call__(self, x: Array, mask: Array | None) -> Array:
        """Like ResNet's, for the features [b, height, width, channels] before the block."""
        y = x
        for number in range(1, len(self.convs) + 1):
            y = y if number == 1 else nnx.relu(y)
            y = self.norms[str(number)](self.convs[str(number)](y), mask)
        return nnx.relu(y + self.shortcut(x, mask))


class PaddedShortcut(nnx.Module):
    """Every stride-th position, followed by `added` channels of zeros. The identity for 1 and 0."""

    def __init__(self, stride: int, added: int) -> None:
        self.stride = stride
        self.added = added

    def __call__(self, x: Array, _: Array | None) -> Array:
        """See ConvNorm."""
        strided = x[:, :: self.stride, :: self.stride]
        return jnp.pad(strided, ((0, 0), (0, 0), (0, 0), (0, self.added)))


class ConvNorm(nnx.Module):
    """A convolution and its batch norm."""

    def __init__(
        self,
        channels: int,
        features: int,
        kernel: int,
        stride: int,
        rngs: nnx.Rngs,
        norm: Callable[..., BatchNorm],
    ) -> None:
        self.conv = _conv(channels, features, kernel, stride, rngs)
        self.norm = norm(features)

    def __call__(self, x: Array, mask: Array | None) -> Array:
        """Like ResNet's, without a rectifier."""
        return self.norm(self.conv(x), mask)


def _conv(channels: int, features: int, kernel: int, stride: int, rngs: nnx.Rngs) -> nnx.Conv:
    return nnx.Conv(
        channels,
        features,
        (kernel, kernel),
        strides=stride,
        padding=kernel // 2,
        use_bias=False,  # the batch norm has one
        kernel_init=HE_INIT,
        rngs=rngs,
    )
