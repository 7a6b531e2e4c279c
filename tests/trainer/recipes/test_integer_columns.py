"""Columns of large integers, as inputs and as the target: what float32 would round away counts, everywhere alike."""

from dataclasses import replace

import numpy as np
import pytest

from pipeline.description import Description
from pipeline.shards.schema import ColumnStatistics, Feature, Schema
from pipeline.sources.in_memory import ExampleRecords
from pipeline.sources.open_dataset import open_dataset
from trainer.commands.recorded import load
from trainer.recipe import settings
from trainer.recipes.tabular import Config
from trainer.trainer import Trainer

SCHEMA = Schema(
    "table",
    {
        "x": Feature("float32"),
        "time": Feature("int64"),
        "pair": Feature("int64", (2,)),
        "y": Feature("int64"),
    },
)
UNITS = {10**8: 1, 10**9: 1, 17 * 10**17: 10**9}  # the last: nanoseconds
BASES = [pytest.param(base, marks=pytest.mark.slow) for base in UNITS]
BASES[1] = 10**9


def table(base, rows=300, seed=0):
    """Columns of int64 around the base: the time and the pair span 100 units, and tell the target, as x does."""
    rng, unit = np.random.default_rng(seed), UNITS[base]
    time = base + rng.integers(0, 100, rows) * unit
    pair = base + rng.integers(0, 100, (rows, 2)) * unit
    x = rng.normal(size=rows).astype(np.float32)
    y = base + np.round(20 * x + (time - base) / unit).astype(np.int64) * unit
    return {"x": x, "time": time, "pair": pair, "y": y}


def records(columns, of_statistics=None):
    """The table as records, with the statistics of these columns: the sums are Python's, without rounding."""
    found = {}
    for name, values in (of_statistics or columns).items():
        flat = values.ravel().tolist()
        mean = sum(flat) / len(flat)
        deviation = float(np.std((values - round(mean)).astype(np.float64)))
        found[name] = ColumnStatistics(len(flat), 0, mean, deviation, min(flat), max(flat))
    lists = [values.tolist() for values in columns.values()]
    examples = [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]
    return ExampleRecords("rows", SCHEMA, examples, description=Description(SCHEMA, None, found))


def reading(recipe, mode, data):
    """The recipe in this mode on these records."""
    other = replace(recipe, mode=mode)
    vars(other)["train_records" if mode == "train" else "eval_records"] = open_dataset(data)
    return other


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """trained(base): the recipe, trained on table(base)."""
    runs = {}

    def run(base):
        if base not in runs:
            workdir = str(tmp_path_factory.mktemp("run"))
            trainer = settings(
                workdir=workdir,
                global_batch_size=64,
                eval_batch_size=64,
                max_steps=200,
                iterations_per_loop=100,
            )
            recipe = Config(data_dir="nowhere", target="y", widths=(16,), trainer=trainer)
            training = reading(recipe, "train", records(table(base)))
            Trainer(training.task(), trainer).train(training.train_input)
            runs[base] = recipe
        return runs[base]

    return run


def measured(labels, predictions):
    """Right values, in float64: the base is subtracted from integers."""
    first = int(labels[0])
    y = np.array([int(each) - first for each in labels], np.float64)
    p = np.asarray(predictions, np.float64) - first
    return {
        "regression/mean_absolute_error": np.abs(y - p).mean(),
        "regression/rmse": np.sqrt(((y - p) ** 2).mean()),
        "regression/r2": 1 - ((y - p) ** 2).sum() / ((y - y.mean()) ** 2).sum(),
        "regression/correlation": np.corrcoef(y, p)[0, 1],
    }


@pytest.mark.parametrize("base", BASES)
def test_metrics_are_those_of_the_predictions(trained, base):
    recipe, other = trained(base), table(base, 150, seed=1)
    reader = reading(recipe, "evaluate", records(other))  # with statistics of its own
    trainer = Trainer(reader.task(), recipe.trainer)
    result = trainer.evaluate(reader.eval_input)
    predicted = [*trainer.predict(reader.eval_input)]
    # to the 24 bits of what a batch spans
    labels = np.array([each["label"] for each in predicted])
    assert labels.dtype == np.int64
    assert np.abs(labels - other["y"]).max() <= (base != 10**9) * np.ptp(other["y"]) / 2**24
    predictions = [each["prediction"] for each in predicted]
    right = measured(other["y"], predictions)
    assert right["regression/r2"] > 0.8  # x and the time tell it
    for name, value in right.items():
        assert result.metrics[name] == pytest.approx(value, rel=1e-4), name
    assert {each.dtype for each in predictions} == {np.dtype(np.float64)}
    assert (result.proven, result.not_finite) == (True, {})

    model = load(recipe.trainer.workdir, recipe=recipe)
    loaded = model.predict({name: values for name, values in other.items() if name != "y"})
    assert loaded["prediction"] == pytest.approx(predictions, rel=0, abs=1e-3 * UNITS[base])
