"""Tables: a multilayer perceptron predicts a column of a table from others, a class or a number.

    infeed convert table --raw-data-dir=houses --validation-fraction=0.2 --output=shards/houses
    infeed train tabular --data-dir shards/houses --target price --workdir runs/houses

Data: any table that `infeed convert table` has converted. Inputs are normalized by the statistics
of the training split that the conversion wrote. A category is predicted with cross entropy and
accuracy, a number with squared errors and the metrics of a regression.

Integers may be as large as int64, such as times in nanoseconds. Their rounded mean is subtracted in
64 bits before they become float32, which keeps 24 bits of what a column spans, and is added to what
is predicted."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pipeline.checks import did_you_mean
from pipeline.errors import OptionError
from pipeline.logs import logger
from pipeline.raw.cells import class_number, is_blank
from pipeline.shards.schema import ColumnStatistics, Feature, Labels, Schema, Statistics
from trainer.recipe import DataRecipe, OptimizerConfig, TrainerConfig, settings

if TYPE_CHECKING:
    import jax

    from pipeline.shards.example import Value
    from pipeline.sources.in_memory import ExampleRecords
    from trainer.models.small import TabularMlp
    from trainer.task import Batch, Task

log = logger("trainer")
TINY: Statistics = {
    "area": ColumnStatistics(130, 0, 64.5, 37.5, 0.0, 129.0),
    "city": ColumnStatistics(130, 0, categories={"Oslo": 65, "Rome": 65}),
    "price": ColumnStatistics(130, 0, 129.5, 75.0, 0.0, 259.0),
}


@dataclass(frozen=True, kw_only=True)
class Config(DataRecipe):
    """Trains a multilayer perceptron on a table, then evaluates one exact epoch of the validation
    split."""

    target: str | None = None
    """The column to predict, a category or a number. Default: the label of the table."""
    columns: tuple[str, ...] = ()
    """The columns to predict from. Default: all numbers and categories, except lists of any
    length."""
    widths: tuple[int, ...] = (128, 128)
    """Widths of the dense layers."""
    dropout: float = 0.2
    """Share of the outputs of each layer that a training step leaves out."""
    class_weights: Literal["equal", "balanced"] = "equal"
    """What the rows of a class weigh in the loss of the training; metrics weigh all alike.
    balanced: all classes the same in sum."""
    weight_column: str | None = None
    """A column of numbers that say what each row weighs in the loss of the training. It is no
    input."""
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=3e-3, weight_decay=1.0)
    trainer: TrainerConfig = settings(eval_batch_size=512, iterations_per_loop=50, max_steps=2000)

    @cached_property
    def statistics(self) -> Statistics:
        """Those of the training split, by column."""
        if self.description is None or not self.description.columns:
            raise OptionError(
                f"{self.data_name} has no statistics of columns. Convert a table: infeed convert "
                "table."
            )
        return self.description.columns

    @property
    def target_key(self) -> str | None:
        """See DataRecipe."""
        return self.target or super().target_key

    @cached_property
    def predicted(self) -> str:
        """The target."""
        labels = self.description and self.description.labels
        return self._column("target", self.target or (labels.key if labels else ""))

    @cached_property
    def inputs(self) -> Mapping[str, int]:
        """The columns to predict from, and how many values each has."""
        names = {self._column("columns", name) for name in self.columns or self._sizes}
        inputs = {
            name: size
            for name, size in self._sizes.items()
            if name in names and name not in (self.predicted, self.weight_column)
        }
        if not inputs:
            raise OptionError(
                f"a model needs at least one column besides the target {self.predicted!r}."
            )
        return inputs

    def _column(self, option: str, name: str) -> str:
        if name not in self._sizes:
            hint = did_you_mean(name, self._sizes)
            raise OptionError(
                f"{option}={name!r}: not a column of classes or of numbers, as many in every "
                f"row.{hint}"
            )
        return name

    @cached_property
    def _sizes(self) -> Mapping[str, int]:
        features = self.schema.features
        sizes = {name: features[name].num_values for name in self.statistics if name in features}
        return {name: size for name, size in sizes.items() if size}

    @cached_property
    def offsets(self) -> Mapping[str, int]:
        """See Task.offsets: the rounded means of columns of integers, as the model knows them."""
        features = self.schema.features
        return {
            name: round(column.mean)
            for name, column in self.statistics.items()
            if column.mean is not None and name in features and features[name].dtype == "int64"
        }

    def _centered(self, name: str) -> ColumnStatistics:
        """Those of a column in batches."""
        column = self.statistics[name]
        return replace(column, mean=(column.mean or 0.0) - self.offsets.get(name, 0))

    @property
    def _classes(self) -> Mapping[str, int]:
        return self.statistics[self.predicted].categories

    def check(self) -> None:
        """Checks like DataRecipe.check. Raises OptionError for columns that the table does not
        have."""
        super().check()
        _ = self.inputs
        if self.class_weights == "balanced" and not self._classes:
            raise OptionError(
                f"class_weights=balanced, but {self.predicted!r} is a number. Leave it out, or "
                "give weight_column."
            )
        if self.weight_column is not None and self.mode == "train":
            self._check_weights(self.weight_column)

    def _check_weights(self, name: str) -> None:
        lists = self._sizes[self._column("weight_column", name)] > 1
        column = self.statistics[name]
        has = "lists" if lists else "categories"
        if column.min is not None and not lists:
            weighs = column.min >= 0 < (column.max or 0) and not column.missing
            if weighs and name != self.predicted:
                return
            has = f"numbers from {column.min:g} to {column.max:g}, and {column.missing} missing"
        raise OptionError(
            f"weight_column={name!r} has {has}. It must have a number of at least 0 in each row, "
            "not only zeros, and not be the target."
        )

    def class_names(self) -> Mapping[str, Labels]:
        """The names of the predicted class."""
        return {"class": Labels(self.predicted, 0, tuple(self._classes))} if self._classes else {}

    @cached_property
    def row_classes(self) -> Mapping[str, Mapping[str, int]]:
        """The classes of the inputs; see DataRecipe.row_classes."""
        numbers = dict[str, dict[str, int]]()
        for name in self.inputs:
            if classes := self.statistics[name].categories:
                numbers[name] = {category: number for number, category in enumerate(classes)}
        return numbers

    def row_schema(self, schema: Schema) -> Schema:
        """Numbers are float32, as in batches: int64 has no value for a missing one."""
        numbers = self.inputs.keys() - self.row_classes
        floats = {name: replace(schema.features[name], dtype="float32") for name in numbers}
        return replace(schema, features={**schema.features, **floats})

    def row_record(self, cells: Mapping[str, Any]) -> "Mapping[str, Value]":
        """See DataRecipe.row_record; classes are given by name. What a row lacks, which the log
        says once, and a class never seen, is missing."""
        for name in self.inputs.keys() - cells.keys() - self._lacking:
            self._lacking.add(name)
            log.warning("a row has no column %s, which counts as missing", name)
        values = {name: cells.get(name, [None] * size) for name, size in self.inputs.items()}
        for name, numbers in self.row_classes.items():
            cell = cells.get(name)
            cell = self.schema.features[name].missing if is_blank(cell) else cell
            values[name] = class_number(numbers, cell)
        record = super().row_record(values if cells.keys() & self.inputs.keys() else cells)
        centered = {
            name: np.array(record[name], object) - self.offsets[name]  # Python's integers
            for name in self.offsets.keys() & self.inputs.keys() & record.keys()
        }
        return {**record, **centered}

    @cached_property
    def _lacking(self) -> set[str]:
        return set()

    def tiny_records(self, split: str) -> "ExampleRecords":
        """130 houses, whose price depends on their area and city."""
        from pipeline.description import Description
        from pipeline.sources.in_memory import ExampleRecords

        schema = Schema(
            "tiny",
            {"area": Feature("float32"), "city": Feature("int64"), "price": Feature("float32")},
        )
        rows = (
            {"area": float(i), "city": i % 2, "price": float(i * (1 + i % 2))} for i in range(130)
        )
        labels = Labels("city", 0, ("Oslo", "Rome"))
        description = Description(schema, labels, TINY)
        return ExampleRecords(f"{split} (--tiny)", schema, rows, labels, description=description)

    def train_input(self) -> Any:
        """The inputs and the target."""
        from pipeline.datasets import train_dataset

        weights = [self.weight_column] if self.weight_column else []
        return train_dataset(self.train_records, keys=(*self.inputs, self.predicted, *weights))

    def eval_input(self) -> Any:
        """Like train_input, in order."""
        from pipeline.datasets import eval_dataset

        return eval_dataset(self.eval_records, keys=(*self.inputs, self.predicted))

    def model(self, rngs: Any) -> "TabularMlp":
        """See TabularMlp."""
        from trainer.models.small import TabularMlp

        columns = {name: self._centered(name) for name in self.inputs}
        outputs = max(1, len(self._classes))
        return TabularMlp(
            columns, self.inputs, outputs, rngs, widths=self.widths, dropout=self.dropout
        )

    def task(self) -> "Task":
        """Cross entropy of a class, or half the squared error of a normalized number.

        Predicts the class and its probability, or the number, as "prediction"; also the label, if
        the batch has it."""
        import jax.numpy as jnp

        from trainer.metrics.means import Regression
        from trainer.nnx_task import nnx_task
        from trainer.optimizers.build import make_optimizer
        from trainer.recipes.tasks import balanced_weights, classifier_task
        from trainer.task import Target

        key = self.predicted
        target = Target(key, len(self._classes) or None)
        if self._classes:
            balances = self.class_weights == "balanced" and self.mode == "train"
            task = classifier_task(
                self,
                self.model,
                target,
                logits_of=lambda model, batch: model(batch),
                class_weights=balanced_weights([*self._classes.values()]) if balances else None,
            )
            return self._weighted(replace(task, offsets=self.offsets))
        own = self._centered(key)
        mean = own.mean or 0.0
        deviation = own.deviation or 1.0

        def loss(model: Any, batch: "Batch") -> tuple["jax.Array", "jax.Array"]:
            outputs = model(batch)[:, 0]
            errors = outputs - (batch[key].astype(jnp.float32) - mean) / deviation
            return errors**2 / 2, outputs * deviation + mean

        def predict(model: Any, batch: "Batch") -> dict[str, "jax.Array"]:
            label = {"label": batch[key]} if key in batch else {}
            return {"prediction": model(batch)[:, 0] * deviation + mean, **label}

        unit = 2.0**20 if key in self.offsets else 1.0  # squares of nanoseconds are large
        task = nnx_task(
            self.model,
            loss,
            make_optimizer(self.optimizer, self.run),
            {"regression": Regression(key, unit=unit)},
            predict,
            precision=self.trainer.precision,
            target=target,
        )
        offset = self.offsets.get(key)
        added = {} if offset is None else {"prediction": float(offset), "label": offset}
        return self._weighted(replace(task, offsets=self.offsets, added=added))

    def _weighted(self, task: "Task") -> "Task":
        """The task with the weights of weight_column, besides those of classes."""
        name = self.weight_column
        if name is None or self.mode != "train":
            return task
        of_class = task.sample_weight or (lambda _: 1.0)
        offset = self.offsets.get(name, 0)

        def weight(batch: "Batch") -> "jax.Array":
            return (batch[name].astype("float32") + offset).reshape(-1) * of_class(batch)

        return replace(task, sample_weight=weight)
