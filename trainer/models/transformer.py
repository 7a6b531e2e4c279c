"""A decoder-only Transformer for rows of packed text: RMSNorm, rotary positions, SwiGLU, and a mask
by segment.

As in Llama (https://arxiv.org/abs/2302.13971). Layers are scanned, so compilation takes as long as
for one.

A layer gathers the parameters that fsdp splits where it uses them, while rows stay split: XLA alone
gathers the rows where that takes fewer bytes. Without fsdp in the mesh, that changes nothing in the
program.

Rematerialization chooses which intermediate values the backward pass recomputes to save memory."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import PartitionSpec as P

from pipeline.checks import check_choice
from trainer.config import FSDP, MODEL, Rule
from trainer.mesh.placement import ROWS, axes_of, spec_by

__all__ = ["Remat", "rematerialized"]

Remat = Literal["none", "dots", "full"]
"""none: keep all. dots: keep the results of products with parameters, recompute the rest. full:
recompute all."""
_POLICIES = {"dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable, "full": None}
EMBEDDING_INIT = nnx.initializers.normal(1.0)
ROTARY_BASE = 10_000.0  # https://arxiv.org/abs/2104.09864
HIDDEN_MULTIPLE = 32
Kernel = Literal["xla", "cudnn", "splash"]
LANES = 128  # of a TPU
_MOST_BLOCK = 512  # tokens; jax's default, 128, is a small tile for the matrix unit
Attend = Callable[..., Array]
T = TypeVar("T")


def rematerialized(layer: Callable[..., Any], remat: Remat) -> Callable[..., Any]:
    """`layer`, a function whose arguments are nnx modules and arrays, as the body of a scan over
    layers usually is.

    Returns the same values and gradients; the backward pass computes again what the policy does not
    keep."""
    check_choice("remat", remat, get_args(Remat))
    return layer if remat == "none" else nnx.remat(layer, policy=_POLICIES[remat])


class KeysAndValues(NamedTuple):
    """The keys and values of the tokens so far, [layers, b, length, heads, features]: what a step
    of Transformer needs of them."""

    keys: Array
    values: Array


class Transformer(nnx.Module):
    """Logits of the next token. A token sees itself and the tokens before it in its own segment.

    width: features of each token, a multiple of twice the heads. The SwiGLU has 8/3 of it, as in
        Llama.
    dropout: share of each layer's two results that training drops.
    rules: of the flag --partition.
    remat: see Remat; with "attention" the backward pass keeps nothing of length x length.
    kernel: what computes the attention; cudnn needs an NVIDIA GPU and 16 bits, splash a TPU and a
        multiple of 128 tokens.

    Arrays of the layers are stacked: "layers/attention/query/kernel" is [layers, width, heads,
    features]."""

    def __init__(
        self,
        vocabulary_size: int,
        rngs: nnx.Rngs,
        *,
        layers: int,
        width: int,
        heads: int,
        dropout: float = 0.0,
        rules: Sequence[Rule] = (),
        remat: Remat | Literal["attention"] = "none",
        kernel: Kernel = "xla",
    ) -> None:
        attend = partial(attended, kernel=kernel)
        attend = attend if remat == "none" else jax.checkpoint(attend)  # and with it the mask
        self.remat: Remat = "none" if remat == "attention" else remat
        self.num_layers = layers
        self.heads = heads
        self.features = width // heads
        self.rules = tuple(rules)
        self.embedding = nnx.Embed(vocabulary_size, width, embedding_init=EMBEDDING_INIT, rngs=rngs)
        # the default, float32, would be that of all layers' sums in any precision
        self.embedding.dtype = None
        self.layers = stacked(layers, rngs, lambda rngs: Layer(width, heads, dropout, rngs, attend))
        self.norm = nnx.RMSNorm(width, rngs=rngs)
        # float32: a logit in bfloat16 has an error of up to 0.4 %, which the loss would show.
        self.head = nnx.Linear(
            width, vocabulary_size, use_bias=False, preferred_element_type=jnp.float32, rngs=rngs
        )

    def __call__(self, tokens: Array, segment_ids: Array, positions: Array) -> Array:
        """Logits float32 [b, length, vocabulary] of the token after each; all arguments are int [b,
        length].

        segment_ids: equal in one segment, of neighboring tokens. positions: in the segment, from
        0."""

        def step(layer: Layer, x: Array, _: None) -> tuple[Array, None]:
            return layer(x, positions, segment_ids), None

        return self._logits(step, tokens, None)[0]

    def start_state(self, rows: int, length: int) -> KeysAndValues:
        """The state before the first token of `rows` segments of at most `length` tokens."""
        empty = jnp.zeros(
            (self.num_layers, rows, length, self.heads, self.features),
            self.layers.attention.key.dtype,
        )
        return KeysAndValues(empty, empty)

    def step(
        self, tokens: Array, position: Array, state: KeysAndValues
    ) -> tuple[Array, KeysAndValues]:
        """Logits float32 [b, vocabulary] after one more token of each segment, int [b], and the
        next state.

        position: int [], that of these tokens. The logits are those of a call with the complete
        segments."""
        positions = jnp.full((tokens.shape[0], 1), position)

        def step(layer: Layer, x: Array, state: KeysAndValues) -> tuple[Array, KeysAndValues]:
            return layer.step(x, positions, state)

        logits, state = self._logits(step, tokens[:, None], state)
        return logits[:, 0], state

    def _logits(
        self, step: Callable[[Any, Array, Any], tuple[Array, Any]], tokens: Array, states: Any
    ) -> tuple[Array, Any]:
        """The logits of tokens [b, length], and the states: see in_turn."""
        x = gathered(self.embedding, "embedding", self.rules)(tokens)
        x, states = in_turn(self.layers, step, x, states, self.remat, self.rules)
        return gathered(self.head, "head", self.rules)(self.norm(x)), states


class Layer(nnx.Module):
    """Attention and a SwiGLU, each added to its input, which is normalized before."""

    def __init__(
        self, width: int, heads: int, dropout: float, rngs: nnx.Rngs, attend: Attend
    ) -> None:
        hidden = -(-width * 8 // 3 // HIDDEN_MULTIPLE) * HIDDEN_MULTIPLE
        self.norms = nnx.Dict(
            attention=nnx.RMSNorm(width, rngs=rngs), swiglu=nnx.RMSNorm(width, rngs=rngs)
        )
        self.attention = Attention(width, heads, rngs, attend)
        self.swiglu = SwiGlu(width, hidden, rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x: Array, positions: Array, segment_ids: Array) -> Array:
        """x: [b, length, width]. positions, segment_ids: as Transformer's."""
        x += self.dropout(self.attention(self.norms["attention"](x), positions, segment_ids))
        return x + self.dropout(self.swiglu(self.norms["swiglu"](x)))

    def step(self, x: Array, positions: Array, state: KeysAndValues) -> tuple[Array, KeysAndValues]:
        """x: [b, 1, width]. state: of this layer, without the axis of layers."""
        attended, state = self.attention.step(self.norms["attention"](x), positions, state)
        x += attended
        return x + self.swiglu(self.norms["swiglu"](x)), state


class Projections(nnx.Module):
    """What an attention with several heads multiplies with. options: of nnx.LinearGeneral."""

    def __init__(self, width: int, heads: int, rngs: nnx.Rngs, **options: Any) -> None:
        into = partial(nnx.LinearGeneral, width, (heads, width // heads), rngs=rngs, **options)
        self.query, self.key, self.value = into(), into(), into()
        self.out = nnx.LinearGeneral(
            (heads, width // heads), width, axis=(-2, -1), rngs=rngs, **options
        )


class Attention(Projections):
    """Attention with several heads and rotary positions. attend: `attended`, or one that keeps
    less."""

    def __init__(self, width: int, heads: int, rngs: nnx.Rngs, attend: Attend) -> None:
        super().__init__(width, heads, rngs, use_bias=False)
        self.attend = attend

    def __call__(self, x: Array, positions: Array, segment_ids: Array) -> Array:
        """See Layer."""
        query, key = (rotated(project(x), positions) for project in (self.query, self.key))
        return self.out(self.attend(query, key, self.value(x), segment_ids))

    def step(self, x: Array, positions: Array, state: KeysAndValues) -> tuple[Array, KeysAndValues]:
        """See Layer."""
        query, key = (rotated(project(x), positions) for project in (self.query, self.key))
        place = (0, positions[0, 0], 0, 0)
        keys, values = (
            jax.lax.dynamic_update_slice(before, new.astype(before.dtype), place)
            for before, new in zip(state, (key, self.value(x)), strict=True)
        )
        mask = (jnp.arange(keys.shape[1]) <= positions[0, 0])[None, None, None]
        attended = jax.nn.dot_product_attention(query, keys, values, mask=mask)
        return self.out(attended), KeysAndValues(keys, values)


class SwiGlu(nnx.Module):
    """down(silu(gate(x)) * up(x)), https://arxiv.org/abs/2002.05202."""

    def __init__(self, width: int, hidden: int, rngs: nnx.Rngs) -> None:
        self.gate, self.up = (
            nnx.Linear(width, hidden, use_bias=False, rngs=rngs) for _ in range(2)
        )
        self.down = nnx.Linear(hidden, width, use_bias=False, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        """x: [..., width]."""
        return self.down(nnx.silu(self.gate(x)) * self.up(x))


def attended(query: Array, key: Array, value: Array, segment_ids: Array, kernel: Kernel) -> Array:
    """Attention to the token and those before it in its segment. [b, length, heads, features]
    each."""
    if kernel == "splash":
        return splashed_or_xla(query, key, value, segment_ids)
    mask = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
    mask &= jnp.tri(query.shape[1], dtype=bool)
    return jax.nn.dot_product_attention(query, key, value, mask=mask, implementation=kernel)


@jax.custom_vjp
def splashed_or_xla(query: Array, key: Array, value: Array, segment_ids: Array) -> Array:
    """`splashed`; on other devices, where exports run, `attended` by XLA. Its gradient is for TPUs
    alone: a program for several would keep what each of them needs."""
    return _by_platform.bind(query, key, value, segment_ids)


def _with_gradient(query: Array, key: Array, value: Array, segment_ids: Array) -> Any:
    return jax.vjp(partial(splashed, segment_ids=segment_ids), query, key, value)


splashed_or_xla.defvjp(_with_gradient, lambda pull, gradient: (*pull(gradient), None))


def splashed(
    query: Array, key: Array, value: Array, segment_ids: Array, *, interpret: bool = False
) -> Array:
    """`attended` by jax's kernel for TPUs, which has no array of length x length.

    interpret: for tests, on any device."""
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    def local(query: Array, key: Array, value: Array, segment_ids: Array) -> Array:
        length, heads = query.shape[1:3]
        mask = splash.MultiHeadMask([splash.CausalMask((length, length))] * heads)
        block = math.gcd(length, _MOST_BLOCK)
        sizes = splash.BlockSizes(block, block, block, block, block, block, block, block)
        attend: Any = splash.make_splash_mha_single_device(
            mask, block_sizes=sizes, interpret=interpret
        )
        heads_first = partial(jnp.moveaxis, source=2, destination=1)
        return heads_first(
            jax.vmap(attend)(
                heads_first(query * query.shape[-1] ** -0.5),
                heads_first(key),
                heads_first(value),
                splash.SegmentIds(segment_ids, segment_ids),
            )
        )

    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return local(query, key, value, segment_ids)
    # XLA cannot divide a kernel among devices
    heads = MODEL if query.shape[2] % mesh.shape[MODEL] == 0 else None
    rows, of_heads = P(ROWS), P(ROWS, None, heads)
    return jax.shard_map(
        local, in_specs=(of_heads, of_heads, of_heads, rows), out_specs=of_heads, check_vma=False
    )(query, key, value, segment_ids)


# lax.platform_dependent would lower both for all platforms of an export, and splash refuses a CPU.
_by_platform = Primitive("splashed_or_xla")
_by_platform.def_impl(jax.jit(_by_platform.bind))
_by_platform.def_abstract_eval(lambda query, *_: query)
_by_xla = partial(attended, kernel="xla")
mlir.register_lowering(_by_platform, mlir.lower_fun(_by_xla, multiple_results=False))
mlir.register_lowering(
    _by_platform, mlir.lower_fun(splashed, multiple_results=False), platform="tpu"
)


def rotated(x: Array, positions: Array) -> Array:
    """x [b, length, heads, features], with pairs of features, i and features / 2 + i, rotated by an
    angle.

    The angle grows with the position, so a product of two depends only on how far apart they are.
    positions: int [b, length]."""
    half = x.shape[-1] // 2
    angles = positions[:, :, None, None] * ROTARY_BASE ** (-jnp.arange(half) / half)
    # float32: bfloat16 has no room for a position above 256
    cos = jnp.cos(angles)
    sin = jnp.sin(angles)
    first = x[..., :half]
    second = x[..., half:]
    pairs = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(pairs, -1).astype(x.dtype)


def stacked(layers: int, rngs: nnx.Rngs, make: Callable[[nnx.Rngs], T]) -> T:
    """`layers` modules as one, whose arrays have an axis of layers before their own."""
    return nnx.split_rngs(splits=layers)(nnx.vmap(make))(rngs)


def in_turn(
    layers: Any,
    step: Callable[[Any, Array, Any], tuple[Array, Any]],
    x: Array,
    states: Any,
    remat: Remat,
    rules: Sequence[Rule],
) -> tuple[Array, Any]:
    """x after step(layer, x, state of this layer) -> the next x and state, of every stacked layer
    in turn; and these states.

    Not nnx.scan, which refuses to run inside another loop, as when sampling."""
    graph, arrays = nnx.split(layers)
    rules = [(names, axes[1:]) for names, axes in rules]

    def one(x: Array, of_layer: Any) -> tuple[Array, Any]:
        layer = gathered(nnx.merge(graph, of_layer[0]), "layers", rules)
        return step(layer, x, of_layer[1])

    # What is rematerialized is gathered once more, too.
    body = gathers_again(one) if remat == "none" else rematerialized(one, remat)
    return jax.lax.scan(body, x, (arrays, states))


def gathered(module: Any, path: str, rules: Sequence[Rule]) -> Any:
    """The module, which has this path in the model, with parameters that only the other axes of
    these rules split."""
    if not _has_fsdp():
        return module
    graph, params, others = nnx.split(module, nnx.Param, ...)

    def rows_complete(names: Any, leaf: Any) -> Any:
        spec = spec_by(rules, "/".join((path, *map(str, names)))) or P()
        complete = P(*map(_without_rows, spec))
        return leaf.replace(jax.lax.with_sharding_constraint(leaf.get_value(), complete))

    return nnx.merge(graph, nnx.map_state(rows_complete, params), others)


def _without_rows(entry: Any) -> tuple[str, ...]:
    return tuple(axis for axis in axes_of(entry) if axis not in ROWS)


def gathers_again(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose gradient gathers parameters once more: otherwise those of all layers are
    kept until then."""

    def keeps(primitive: Any, *_: Any, **__: Any) -> bool:
        return primitive.name != "sharding_constraint"

    return jax.checkpoint(function, prevent_cse=False, policy=keeps) if _has_fsdp() else function


def _has_fsdp() -> bool:
    return jax.sharding.get_abstract_mesh().shape.get(FSDP, 1) > 1
