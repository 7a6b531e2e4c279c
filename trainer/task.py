"""A Task defines what to train: pure functions over pytrees, for any model library.

The trainer handles the mask, the mean over records and the random key of a step; a Task sees
complete batches. Needs only jax and optax."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ContextDecorator
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any, ClassVar, Literal, NamedTuple, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import PartitionSpec

from pipeline.checks import check_number, did_you_mean
from pipeline.errors import OptionError
from trainer.config import PrecisionName

__all__ = [
    "Augment",
    "Batch",
    "Better",
    "Computed",
    "LossFn",
    "Metric",
    "Metrics",
    "Partition",
    "PerRecord",
    "PredictFn",
    "Step",
    "Target",
    "Task",
    "TrainState",
    "Variables",
    "copied",
    "kind_of",
]

Batch = Mapping[str, Any]
"""An array, or a tree of them, per key; [b, ...] with a row per record."""
_OF_COUNTS = ("records", "labelled", "masked", "unseen", "num_records")
_OF_RESULTS = (
    *_OF_COUNTS,
    "crc",
    "expected_crc",
    "seconds",
    "name",
    "proven",
    "not_finite",
    "classes",
    "copies",
    "data",
    "fingerprint",
)
# of our JSON files
RESERVED = ("loss", "grad_norm", "step", "time", *_OF_RESULTS, "checkpoint_path")


class Variables(NamedTuple):
    """A model's arrays: `params` are what the optimizer updates, `extra` the rest (running
    statistics)."""

    params: Any
    extra: Any = ()


class TrainState(NamedTuple):
    """step: int32, finished steps. key: raw data of the run's random key; step s uses fold_in(key,
    s).

    ema: the averaged parameters, in float32 or wider; () without ema_decay."""

    step: Array
    variables: Variables
    optimizer: Any
    key: Array
    ema: Any = ()


def kind_of(value: Any) -> str:
    """What a function returned, for messages: "a dict", "a tuple of 3", "an array", "None"."""
    if value is None:
        return "None"
    if isinstance(value, Array):
        return "an array"
    return f"a {type(value).__name__}" + (
        f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
    )


def check_called(what: str, function: Callable[..., Any], arguments: str) -> None:
    """Raises OptionError unless a function of the user's takes these arguments. what: its name in
    the message."""
    try:
        signature(function).bind(*arguments.split(", "))
    except TypeError as error:
        raise OptionError(f"{what} is called with ({arguments}): {error}.") from error


LossFn = Callable[[Variables, Batch, Array, bool], tuple[Array, Variables, Any]]
"""(variables, batch, rng, train) -> losses, variables, outputs: see Task."""
PerRecord = Callable[[Any, Batch], Array]
"""A metric that is a mean: (outputs, batch) -> values [b]."""
PredictFn = Callable[[Variables, Batch], Mapping[str, Any]]
"""(variables, batch) -> predictions by name: see Task."""
Step = Callable[..., tuple[Any, dict[str, Any]]]
"""A step of training, evaluation or prediction: (what it only reads, ..., state, batch) -> the new
state, and scalars or predictions."""
Partition = Callable[[str, tuple[int, ...]], PartitionSpec]
"""(path of a parameter, its shape) -> how to split it over the mesh: see Task."""
Augment = Callable[[Batch], Batch]
"""Changes the batches of training: see Task."""
Better = Literal["max", "min"]
"""Whether the largest or the smallest value of a metric is the best."""
Computed = float | np.ndarray | Mapping[str, float | np.ndarray]
"""The value of a Metric, or several by name."""


class Metric(ABC):
    """A value of a complete split that is not a mean over records. It has a state to which every
    batch adds.

    The state stays on the devices until the epoch ends, so it may be large; it is used in
    evaluation only.

    better: whether "max" or "min" is the best value; of several, by their keys, without arrays.
    None: keep_best_mode has to say it."""

    better: ClassVar[Better | Mapping[str, Better] | None] = None

    @abstractmethod
    def from_batch(self, outputs: Any, batch: Batch, mask: Array) -> Any:
        """The state of one batch: a pytree of arrays, traced inside the step.

        mask: bool [b]. Rows where it is False must not count and may contain anything: leave them
        out with jnp.where(mask, values, 0). If no row counts, merging the state must change
        nothing; the trainer checks this before an epoch."""

    def merge(self, first: Any, second: Any) -> Any:
        """The combined state of the batches of both. Default: their sum, leaf by leaf.

        The trainer computes these sums exactly in int32, which an epoch of fewer than 2**31 records
        cannot overflow, and floats in 48 bits, as two float32 numbers."""
        return jax.tree.map(jnp.add, first, second)

    @abstractmethod
    def compute(self, state: Any) -> Computed:
        """Computes the value on the host, from a state of NumPy arrays in int64 and float64.

        Numbers are reported as scalars, arrays separately; entries of a mapping as "metric's
        name/key"."""

    def totals(self, state: Any) -> Mapping[str, int]:
        """Integers that this metric added up over the split, by the names that the dataset has for
        them: {"num_bytes"}.

        state: as compute's. The evaluation raises EvaluationError where the dataset states another
        number, and reports them in EvalResult.totals. Default: none."""
        return {}


Metrics = Mapping[str, Metric | PerRecord]
"""Metrics by name, as a Task lists them."""


@dataclass(frozen=True)
class Target:
    """What a task predicts: the class in batch[key], an integer [b], or with classes=None a number
    [b].

    Labels are base..base + classes - 1. A missing label is -1, unless that is one of them; a
    missing number is NaN, so integers are never missing. Rows without a label have no part in the
    loss and in the metrics, in training and evaluation. There the task sees `base` in their place,
    and `_labelled` of the batch is 0; predictions see them as stored. Any other label outside of
    the classes is an error."""

    key: str
    classes: int | None = None
    base: int = 0

    def missing(self, labels: Any) -> Any:
        """Whether labels are missing: bool, of the shape of an array, or of one number."""
        if self.classes is None:
            return labels != labels  # as only NaN does
        return (labels == -1) & (-1 not in range(self.base, self.base + self.classes))


def copied(name: str, shape: tuple[int, ...]) -> PartitionSpec:
    """The Partition without one: a complete copy of each parameter on every device."""
    del name, shape
    return PartitionSpec()


@dataclass(frozen=True)
class Task:
    """A model, its loss and its optimizer.

    init(rng, batch_spec) -> Variables. The spec has a jax.ShapeDtypeStruct for each array of a
        batch.
    loss_fn(variables, batch, rng, train) -> losses float [b], one per record; the variables after
        the step, from which the trainer takes `extra` when training; outputs, any pytree, for the
        metrics. Padding rows are all zero, and their results are ignored;
        evaluate(check_padding=True) proves that they do not affect other rows.
    target: what the loss and the metrics are about, so that rows without a label have no part in
        them. None: all rows that count have.
    metrics: name -> function(outputs, batch) -> values [b], one per record, for which the trainer
        reports the masked mean in training and evaluation; or a Metric, in evaluation only. Both
        find the losses [b] in batch["_losses"]. trainer.metrics has the usual ones. Either may have
        a method outside(outputs, batch) -> bool [b], rows whose label is outside of its classes,
        and a str, the allowed labels: such a row ends the run with an error. Either may have
        `better`: see Metric.
    partition(name, shape) -> the mesh axes ("data", "fsdp", "model") over which to split each
        dimension of the parameter with that path ("dense/kernel"), its average and its optimizer
        statistics. Default: none. Large parameters that do not name fsdp are split over it as well;
        TrainerConfig.partition overrides both. The mesh is in context when the functions are
        traced, so a model may constrain its activations:
        jax.lax.with_sharding_constraint(x, PartitionSpec(("data", "fsdp"))).
    predict_fn(variables, batch) -> name -> an array [b, ...], or a tree of them, one row per
        record. Padding rows are all zero, and their results are left out. None: the task cannot
        predict.
    augment(batch) -> the batch that loss_fn sees, in training only: trainer.augment has the usual
        functions. Its padding rows are all zero; the reserved keys keep their values, whatever it
        returns for them.
    precision: in which these functions compute, for comparison with TrainerConfig.precision.
    flops: floating-point operations of one training step on a global batch, for the speed. None:
        those of the products of matrices and the convolutions in the step, which count twice if
        they are computed twice (rematerialized).
    independent_rows: whether the loss of a row depends on no other row, and loss_fn draws no random
        numbers and leaves `extra` as it is, in training, and constrains nothing over data. Then
        devices exchange gradients once per update, however many microbatches it has.
    module(variables) -> the model as an object of its library; nnx_task makes an nnx.Module. None:
        there is none.
    sample_weight(batch) -> float [b]: what the losses of training are multiplied by, before their
        mean. Evaluations and metrics weigh all records alike.
    offsets: key -> what is subtracted from the integers of a batch, see train_dataset.
    added: prediction -> what the host adds to it, as devices compute in 32 bits: an int in int64, a
        float in float64."""

    init: Callable[[Array, Any], Variables]
    loss_fn: LossFn
    optimizer: optax.GradientTransformation
    metrics: Metrics = field(default_factory=dict)
    partition: Partition = copied
    predict_fn: PredictFn | None = None
    augment: Augment | None = None
    precision: PrecisionName = "f32"
    flops: float | None = None
    independent_rows: bool = False
    module: Callable[[Variables], Any] | None = None
    target: Target | None = None
    sample_weight: Callable[[Batch], Array] | None = None
    offsets: Mapping[str, int] = field(default_factory=dict)
    added: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_number(
            "flops", self.flops, above=0, more=". Give those of one training step, or None"
        )
        if not isinstance(self.target, Target | None):
            raise OptionError(
                f"target is {kind_of(self.target)}. Give Target('label', classes=10), say."
            )
        if not isinstance(self.metrics, Mapping):
            raise OptionError(
                f"metrics is {kind_of(self.metrics)}. Give a dict of names: {{'accuracy': "
                "Accuracy('label')}."
            )
        for name, metric in self.metrics.items():
            if name in RESERVED or name.startswith(("_", "speed/")):
                raise OptionError(
                    f"a metric is named {name!r}. {', '.join(RESERVED)} and names that start with "
                    "_ or speed/ are reserved; choose another."
                )
            if isinstance(metric, type) or not (isinstance(metric, Metric) or callable(metric)):
                raise OptionError(
                    f"the metric {name!r} is {metric!r}. Allowed: a function(outputs, batch) -> "
                    "values [b], or an instance of Metric."
                )
            for other, its in self.metrics.items():
                if name.startswith(f"{other}/") and isinstance(its, Metric):
                    raise OptionError(
                        f"the metric {name!r} has the name of a value of the metric {other!r}. "
                        "Choose another."
                    )

    def stored(self, struct: Mapping[str, Any]) -> dict[str, Any]:
        """The jax.ShapeDtypeStruct of each array of a batch before offsets are subtracted."""
        return {
            name: leaf.update(dtype=np.int64) if name in self.offsets else leaf
            for name, leaf in struct.items()
        }

    def traced_in(self, context: Callable[[], ContextDecorator]) -> "Task":
        """The task, whose functions are traced in this context."""
        functions = {
            name: getattr(self, name) for name in ("init", "loss_fn", "predict_fn", "augment")
        }
        return replace(self, **{name: context()(each) for name, each in functions.items() if each})


def better_of(
    metrics: Metrics,
    metric: str,
    better: str | None,
    options: tuple[str, str] = ("keep_best", "keep_best_mode"),
) -> Better:
    """Whether the largest or the smallest value of a metric is the best. better: the user's choice.
    options: the names of both options, for messages.

    Raises OptionError unless evaluations report such a number, and it is known which are the
    best."""
    known: dict[str, Any] = {"loss": "min"}
    for name, each in metrics.items():
        stated = getattr(each, "better", None)
        if isinstance(stated, Mapping):
            known |= {f"{name}/{key}": stated[key] for key in stated}
        elif stated is None and isinstance(each, Metric) and metric.startswith(f"{name}/"):
            known[metric] = None  # perhaps one of its values
        else:
            known[name] = stated
    if metric not in known:
        raise OptionError(
            f"{options[0]}={metric!r} is not a number that an evaluation "
            f"reports.{did_you_mean(metric, known)}"
        )
    if known[metric] and better not in (None, known[metric]):
        raise OptionError(
            f"{options[1]}={better!r} contradicts {metric!r}, whose best value is the "
            f"{known[metric]}imum. Leave it out."
        )
    best = cast(Better, known[metric] or better)
    if best not in get_args(Better):
        raise OptionError(
            f"{options[0]}={metric!r} needs {options[1]}, 'max' or 'min': the metric does not "
            "state which values are the best."
        )
    return best


def chosen(predictions: Mapping[str, Any], keys: Sequence[str] | None) -> dict[str, Any]:
    """The predictions with these names; None: all. Raises OptionError for a name that is not one of
    them."""
    for key in keys or ():
        if key not in predictions:
            raise OptionError(f"the task does not predict {key!r}.{did_you_mean(key, predictions)}")
    return {key: predictions[key] for key in (predictions if keys is None else keys)}
