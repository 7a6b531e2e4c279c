"""Small convolutional networks for grey or color thumbnails, used by the recipes."""

import itertools

import jax.numpy as jnp
from flax import nnx
from jax import Array

DROPOUT = 0.4  # share of the dense layer's outputs in PoolingCnn


class SmallCnn(nnx.Module):
    """Strided 3x3 convolutions with these widths, then a dense layer.

    Strides rather than pooling: the gradient of max pooling is slow on CPU. No batch norm: with it, the rows of a
    batch, including padding, would affect each other."""

    def __init__(
        self,
        num_classes: int,
        image_shape: tuple[int, int, int],
        rngs: nnx.Rngs,
        widths: tuple[int, ...] = (16, 32, 64),
    ) -> None:
        height, width = (-(-side // 2 ** len(widths)) for side in image_shape[:2])
        self.convs = _convolutions(image_shape[2], widths, rngs, strides=2)
        self.head = nnx.Linear(height * width * widths[-1], num_classes, rngs=rngs)

    def __call__(self, images: Array, mask: Array | None = None) -> Array:
        """Logits float32 [b, num_classes] for images uint8 [b, *image_shape]. mask: as ResNet's."""
        # no row affects another
        x = images.astype(jnp.float32) / 127.5 - 1.0
        for conv in self.convs:
            x = nnx.relu(conv(x))
        return self.head(x.reshape(x.shape[0], -1))


class PoolingCnn(nnx.Module):
    """The network of most MNIST tutorials: 3x3 convolutions of these widths, each with ReLU and 2x2 max pooling; then a
    dense layer with ReLU, dropout and the layer of classes.

    Has 421,642 parameters for 28x28 grey images, 10 classes and the default widths. Odd sides lose their last row or
    column when pooled."""

    def __init__(
        self,
        num_classes: int,
        image_shape: tuple[int, int, int],
        rngs: nnx.Rngs,
        widths: tuple[int, ...] = (32, 64),
        hidden: int = 128,
    ) -> None:
        height, width = (side // 2 ** len(widths) for side in image_shape[:2])
        self.convs = _convolutions(image_shape[2], widths, rngs)
        self.hidden = nnx.Linear(height * width * widths[-1], hidden, rngs=rngs)
        self.dropout = nnx.Dropout(DROPOUT, rngs=rngs)
        self.head = nnx.Linear(hidden, num_classes, rngs=rngs)

    def __call__(self, images: Array, mask: Array | None = None) -> Array:
        """Logits float32 [b, num_classes] for images uint8 [b, *image_shape]. mask: as ResNet's."""
        # no row affects another
        x = images.astype(jnp.float32) / 127.5 - 1.0
        for conv in self.convs:
            x = _pooled(nnx.relu(conv(x)))
        x = self.dropout(nnx.relu(self.hidden(x.reshape(x.shape[0], -1))))
        return self.head(x)


def _convolutions(channels: int, widths: tuple[int, ...], rngs: nnx.Rngs, strides: int = 1) -> nnx.List:
    pairs = itertools.pairwise((channels, *widths))
    return nnx.List(nnx.Conv(before, after, (3, 3), strides=strides, rngs=rngs) for before, after in pairs)


def _pooled(x: Array) -> Array:
    """The maximum of each 2x2 square. On CPU, a step takes half the time of one with XLA's reduce-window."""
    b, height, width, channels = x.shape
    even = x[:, : height // 2 * 2, : width // 2 * 2]
    squares = (b, height // 2, 2, width // 2, 2, channels)
    return even.reshape(squares).max((2, 4))
