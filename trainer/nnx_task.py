"""Makes a Task from a flax.nnx module. Only this module and the models import flax.

Arrays are named by their path ("conv1/kernel"), so checkpoints can be read without the module's
class."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

from pipeline.checks import check_choice
from pipeline.errors import InputError, OptionError
from pipeline.user_code import ShortErrors
from trainer.config import PrecisionName
from trainer.task import (
    Augment,
    Batch,
    Metrics,
    Partition,
    Target,
    Task,
    Variables,
    check_called,
    copied,
    kind_of,
)

__all__ = ["nnx_task"]

DTYPES: Mapping[PrecisionName, tuple[Any, Any]] = {
    "f32": (jnp.float32, jnp.float32),
    "bf16": (jnp.float32, jnp.bfloat16),
    "bf16_params": (jnp.bfloat16, jnp.bfloat16),
}
"""Of the parameters and of the layers' computations. Losses, metrics and the statistics of norms
stay in float32."""


def nnx_task(
    make_model: Callable[[nnx.Rngs], nnx.Module],
    loss: Callable[[Any, Batch], tuple[Array, Any]],
    optimizer: optax.GradientTransformation,
    metrics: Metrics | None = None,
    predict: Callable[[Any, Batch], Mapping[str, Any]] | None = None,
    augment: Augment | None = None,
    partition: Partition = copied,
    precision: PrecisionName = "f32",
    independent_rows: bool = False,
    target: Target | None = None,
) -> Task:
    """The Task of a module: it optimizes `nnx.Param`s and carries other variables (BatchStat)
    along.

    loss(model, batch) -> (losses [b], outputs), with the model in train() or eval() mode. Random
    streams in the module (dropout) are seeded from the step's key and not saved in checkpoints.
    predict(model, batch) -> name -> array [b, ...], with the model in eval() mode. augment,
    partition, independent_rows and target: see Task. precision: see TrainerConfig. Layers with
    dtype=None compute in it; what the model returns when it is called is cast to float32, so losses
    and metrics need not."""
    if isinstance(make_model, nnx.Module):
        kind = type(make_model).__name__
        raise OptionError(
            f"make_model is a {kind}. Give a function that makes one from nnx.Rngs, whose seed the "
            f"trainer chooses: lambda rngs: {kind}(..., rngs=rngs)."
        )
    check_choice("precision", precision, DTYPES)
    check_called("loss", loss, "model, batch")
    dtype, compute_dtype = DTYPES[precision]
    with ShortErrors():
        abstract = nnx.eval_shape(lambda: make_model(nnx.Rngs(0)))
    if precision != "f32":
        for _, layer in nnx.iter_modules(abstract):
            if getattr(layer, "dtype", ...) is None:  # it leaves open in which dtype to compute
                setattr(layer, "dtype", compute_dtype)  # noqa: B010 (only layers have it)
    graph, params, streams, extra = nnx.split(abstract, nnx.Param, nnx.RngState, ...)

    def init(rng: Array, _: Any) -> Variables:  # an nnx module knows its shapes
        _, fresh, _, fresh_extra = nnx.split(
            make_model(nnx.Rngs(rng)), nnx.Param, nnx.RngState, ...
        )
        return Variables(_cast(_named(fresh), dtype), _named(fresh_extra))

    def merged(variables: Variables, rng: Array) -> Any:
        return nnx.merge(
            graph,
            _filled(params, variables.params),
            _seeded(streams, rng),
            _filled(extra, variables.extra),
        )

    def loss_fn(
        variables: Variables, batch: Batch, rng: Array, train: bool
    ) -> tuple[Array, Variables, Any]:
        model = merged(variables, rng)
        model.train() if train else model.eval()
        losses, outputs = _pair(loss(in_float32(model), batch))
        _, _, _, new_extra = nnx.split(model, nnx.Param, nnx.RngState, ...)
        return losses, Variables(variables.params, _named(new_extra)), outputs

    def module(variables: Variables) -> Any:
        model = merged(variables, jax.random.key(0))
        model.eval()
        return model

    def predict_fn(variables: Variables, batch: Batch) -> Mapping[str, Any]:
        assert predict is not None
        return predict(in_float32(module(variables)), batch)

    def in_float32(model: Any) -> Any:
        return model if precision == "f32" else _InFloat32(model)

    return Task(
        init,
        loss_fn,
        optimizer,
        metrics or {},
        partition,
        None if predict is None else predict_fn,
        augment,
        precision,
        independent_rows=independent_rows,
        module=module,
        target=target,
    )


class _InFloat32:
    """A model that casts what it returns when it is called."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _cast(self._model(*args, **kwargs), jnp.float32)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree
    )


def _pair(returned: Any) -> tuple[Array, Any]:
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise InputError(
            f"loss returned {kind_of(returned)}. It must return two values: the losses [b], and "
            "the outputs."
        )
    return returned


def _named(state: nnx.State) -> dict[str, Any]:
    return {"/".join(map(str, path)): leaf.get_value() for path, leaf in nnx.to_flat_state(state)}


def _filled(state: nnx.State, arrays: Mapping[str, Any]) -> nnx.State:
    return nnx.map_state(lambda path, leaf: leaf.replace(arrays["/".join(map(str, path))]), state)


def _seeded(streams: nnx.State, rng: Array) -> nnx.State:
    flat = []
    for number, (path, leaf) in enumerate(nnx.to_flat_state(streams)):
        value = leaf.get_value()
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            key = jax.random.fold_in(rng, number)
            seeded = jax.random.split(key, value.shape) if value.shape else key
        else:
            seeded = jnp.zeros(value.shape, value.dtype)
        flat.append((path, leaf.replace(seeded)))
    return nnx.from_flat_state(flat)
