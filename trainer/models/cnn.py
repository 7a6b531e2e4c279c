"""A small convolutional network for grey or color thumbnails, used by the recipes."""

import jax
import jax.numpy as jnp
from flax import nnx

__all__ = ["SmallCnn"]


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
        height, width, channels = image_shape
        self.convs = nnx.List()
        for features in widths:
            self.convs.append(nnx.Conv(channels, features, (3, 3), strides=2, rngs=rngs))
            height, width, channels = -(-height // 2), -(-width // 2), features
        self.head = nnx.Linear(height * width * channels, num_classes, rngs=rngs)

    def __call__(self, images: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Logits float32 [b, num_classes] for images uint8 [b, *image_shape]. mask: as ResNet's."""
        del mask  # no row affects another
        x = images.astype(jnp.float32) / 127.5 - 1.0
        for conv in self.convs:
            x = nnx.relu(conv(x))
        return self.head(x.reshape(x.shape[0], -1))
