"""What is trained: pure functions over pytrees, of any model library.

The trainer owns the mask, the mean over records and the random key of a step; a Task sees whole batches. jax only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import optax
from jax.sharding import PartitionSpec

from pipeline.shards.errors import OptionError

__all__ = ["Batch", "LossFn", "Metric", "Partition", "PredictFn", "Step", "Task", "Variables"]

Batch = Mapping[str, Any]
RESERVED = ("loss", "grad_norm")


class Variables(NamedTuple):
    """A model's arrays: `params` are what the optimizer updates, `extra` the rest (running statistics)."""

    params: Any
    extra: Any = ()


LossFn = Callable[[Variables, Batch, jax.Array, bool], tuple[jax.Array, Variables, Any]]
Metric = Callable[[Any, Batch], jax.Array]
PredictFn = Callable[[Variables, Batch], Mapping[str, Any]]
Step = Callable[[Any, Batch], tuple[Any, dict[str, Any]]]  # of training, evaluation or prediction
Partition = Callable[[str, tuple[int, ...]], PartitionSpec]


def _copied(name: str, shape: tuple[int, ...]) -> PartitionSpec:
    del name, shape
    return PartitionSpec()


@dataclass(frozen=True)
class Task:
    """A model, its loss and its optimizer.

    init(rng, batch_spec) -> Variables; the spec has a jax.ShapeDtypeStruct for each array of a batch.
    loss_fn(variables, batch, rng, train) -> losses float [b], one a record; the variables after the step, of which
    the trainer takes `extra` when training; outputs, any pytree, for the metrics. Rows of padding are all zero,
    and what it gives for them is ignored; evaluate(check_padding=True) proves that they do not reach other rows.
    metrics: name -> function(outputs, batch) -> values [b], one a record; the trainer takes their masked mean.
    partition(name, shape) -> over which mesh axes ("data", "model") to split each dimension of the parameter of that
    path ("dense/kernel"), its optimizer statistics too. Default: a whole copy on every device.
    predict_fn(variables, batch) -> name -> an array [b, ...], or a tree of them, one row a record. Rows of padding are
    all zero, and what it gives for them is left out. None: the task cannot predict."""

    init: Callable[[jax.Array, Any], Variables]
    loss_fn: LossFn
    optimizer: optax.GradientTransformation
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    partition: Partition = _copied
    predict_fn: PredictFn | None = None

    def __post_init__(self) -> None:
        for name in self.metrics:
            if name in RESERVED or name.startswith("_"):
                raise OptionError(
                    f"a metric is named {name!r}. {', '.join(RESERVED)} and names that begin with _ are the "
                    "trainer's own; choose another."
                )
