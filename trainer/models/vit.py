"""Vision Transformers: ViT-S/16, B/16 and smaller ones, with the variants that are published.

Dosovitskiy et al. 2020, https://arxiv.org/abs/2010.11929; the plainer variant without a class token
is https://arxiv.org/abs/2205.01580. Layers are scanned, and gather what fsdp splits, as those of
the language model."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from trainer.config import Rule
from trainer.models.pixels import Statistics, normalized
from trainer.models.transformer import Projections, Remat, gathered, in_turn, stacked

POSITION_INIT = nnx.initializers.truncated_normal(0.02)
WAVELENGTHS = 10_000.0


@dataclass(frozen=True)
class VitShape:
    """What distinguishes one Vision Transformer from another.

    patch: pixels of a side. dense: features of the hidden layer, as a multiple of the width.
    pooling: what the head sees. token: a class token, normalized. mean: the mean over the patches,
    normalized before; there is no token. patches: their mean, normalized after, next to a token.
    positions: learned ones, which the token has, too, or fixed sines and cosines of the row and the
    column, of patches alone. gelu: of the error function, or its approximation by tanh. epsilon: of
    the norms."""

    layers: int
    width: int
    heads: int
    patch: int = 16
    dense: int = 4
    pooling: Literal["token", "mean", "patches"] = "token"
    positions: Literal["learned", "sincos"] = "learned"
    gelu: Literal["exact", "tanh"] = "exact"
    epsilon: float = 1e-6


VITS = {
    "vit_ti16": VitShape(12, 192, 3),
    "vit_s16": VitShape(12, 384, 6),
    "vit_b16": VitShape(12, 768, 12),
}
"""By name, as timm and the first paper have them. With images of 224 pixels and 1000 classes,
vit_s16 has 22,050,664 parameters and vit_b16 86,567,656."""
VARIANTS: dict[str, dict[str, Any]] = {
    "timm": {},
    "timm_avg": {"pooling": "patches"},
    "transformers": {"epsilon": 1e-12},
    "big_vision": {"pooling": "mean", "positions": "sincos", "gelu": "tanh"},
}
"""What these libraries publish, as fields of VitShape."""


class Vit(nnx.Module):
    """Logits from square images: patches, positions, layers of attention, a norm and a head.

    size: of the images, in pixels, a multiple of the patch. statistics: means and deviations of the
    channels, which normalize images. rules, remat: as those of Transformer.

    Arrays are named "patches/kernel", "token", "positions" [1, the token and patches, width],
    "norm/scale" ("pooled_norm/scale" if it follows the mean), "head/kernel"; those of the layers
    are stacked: "layers/attention/query/kernel" is [layers, width, heads, features]."""

    norm: nnx.LayerNorm
    pooled_norm: nnx.LayerNorm

    def __init__(
        self,
        shape: VitShape,
        num_classes: int,
        size: int,
        rngs: nnx.Rngs,
        *,
        channels: int = 3,
        statistics: Statistics,
        rules: Sequence[Rule] = (),
        remat: Remat = "none",
    ) -> None:
        self.shape = shape
        self.statistics = statistics
        self.rules = tuple(rules)
        self.remat: Remat = remat
        self.side = size // shape.patch
        patch = (shape.patch, shape.patch)
        self.patches = nnx.Conv(channels, shape.width, patch, patch, padding="VALID", rngs=rngs)
        tokens = int(shape.pooling != "mean")
        self.token = nnx.Param(jnp.zeros((1, 1, shape.width))) if tokens else None
        places = (1, tokens + self.side**2, shape.width)
        learned = shape.positions == "learned"
        self.positions = nnx.Param(POSITION_INIT(rngs.params(), places)) if learned else None

        self.layers = stacked(shape.layers, rngs, partial(Layer, shape))
        name = "pooled_norm" if shape.pooling == "patches" else "norm"
        setattr(self, name, nnx.LayerNorm(shape.width, epsilon=shape.epsilon, rngs=rngs))
        self.head = nnx.Linear(
            shape.width,
            num_classes,
            kernel_init=nnx.initializers.zeros_init(),
            preferred_element_type=jnp.float32,
            rngs=rngs,
        )

    def __call__(self, images: Array, mask: Array | None = None) -> Array:
        """Logits float32 [b, num_classes] for images [b, size, size, channels] in 0..255. mask: not
        used, as no row affects another."""
        del mask
        x = self.patches(normalized(images, self.statistics))
        # an export's number of rows is symbolic, which len is not
        x = self._placed(x.reshape(x.shape[0], -1, x.shape[-1]))

        def step(layer: Layer, x: Array, _: None) -> tuple[Array, None]:
            return layer(x), None

        x, _ = in_turn(self.layers, step, x, None, self.remat, self.rules)
        match self.shape.pooling:
            case "token":  # the norm is by row, so that of the token alone is enough
                x = self.norm(x[:, 0])
            case "mean":
                x = jnp.mean(self.norm(x), axis=1)
            case "patches":
                x = self.pooled_norm(jnp.mean(x[:, 1:], axis=1))
        return gathered(self.head, "head", self.rules)(x)

    def _placed(self, x: Array) -> Array:
        """The patches [b, patches, width] with their positions, behind the token."""
        if self.positions is None:
            x += jnp.asarray(sines(self.side, x.shape[-1]), x.dtype)
        if self.token is not None:
            token = self.token.get_value().astype(x.dtype)
            tokens = jnp.broadcast_to(token, (x.shape[0], 1, x.shape[-1]))
            x = jnp.concatenate([tokens, x], axis=1)
        return x if self.positions is None else x + self.positions.get_value().astype(x.dtype)


class Layer(nnx.Module):
    """Attention and two dense layers, each added to its input, which is normalized before."""

    def __init__(self, shape: VitShape, rngs: nnx.Rngs) -> None:
        norm = partial(nnx.LayerNorm, shape.width, epsilon=shape.epsilon, rngs=rngs)
        self.norms = nnx.Dict(attention=norm(), dense=norm())
        init = nnx.initializers.xavier_uniform()
        self.attention = Attention(shape.width, shape.heads, rngs, kernel_init=init)
        hidden = shape.width * shape.dense
        self.up = nnx.Linear(shape.width, hidden, kernel_init=init, rngs=rngs)
        self.down = nnx.Linear(hidden, shape.width, kernel_init=init, rngs=rngs)
        self.approximates = shape.gelu == "tanh"

    def __call__(self, x: Array) -> Array:
        """x: [b, places, width]."""
        x += self.attention(self.norms["attention"](x))
        hidden = nnx.gelu(self.up(self.norms["dense"](x)), approximate=self.approximates)
        return x + self.down(hidden)


class Attention(Projections):
    """Attention of every place to all, with several heads."""

    def __call__(self, x: Array) -> Array:
        """x: [b, places, width]."""
        return self.out(jax.nn.dot_product_attention(self.query(x), self.key(x), self.value(x)))


def sines(side: int, width: int) -> np.ndarray:
    """float32 [1, side * side, width]: of each patch, sines and cosines of its column, then of its
    row, as in MoCo v3 and big_vision."""
    rows, columns = np.mgrid[:side, :side].reshape(2, -1, 1)
    steps = width // 4
    angles = WAVELENGTHS ** -(np.arange(steps) / max(1, steps - 1))
    parts = [function(of * angles) for of in (columns, rows) for function in (np.sin, np.cos)]
    return np.concatenate(parts, axis=1, dtype=np.float32)[None]
