"""Columns of large integers, as inputs and as the target: what float32 would round away counts, everywhere alike."""

from dataclasses import replace

import numpy as np
import pytest

from pipeline.datasets import eval_dataset
from pipeline.description import Description
from pipeline.errors import InputError
from pipeline.shards.schema import ColumnStatistics, Feature, Schema
from pipeline.sources.in_memory import ExampleRecords
from pipeline.sources.open_dataset import open_dataset
from trainer.checkpointing.kept_data import records_like
from trainer.checkpointing.warm_start import WarmStart
from trainer.checkpoints import get_variable_names, get_variable_value
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
        "same": Feature("int64"),
        "y": Feature("int64"),
    },
)
NAN = float("nan")
UNITS = {10**8: 1, 10**9: 1, 17 * 10**17: 10**9}  # the last: nanoseconds


def table(base, rows=300, seed=0):
    """Columns of int64 around the base: the time and the pair span 100 units, and tell the target, as x does."""
    rng, unit = np.random.default_rng(seed), UNITS[base]
    time = base + rng.integers(0, 100, rows) * unit
    pair = base + rng.integers(0, 100, (rows, 2)) * unit
    x = rng.normal(size=rows).astype(np.float32)
    y = base + np.round(20 * x + (time - base) / unit).astype(np.int64) * unit
    return {"x": x, "time": time, "pair": pair, "same": np.full(rows, base), "y": y}


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


@pytest.mark.slow
@pytest.mark.parametrize("base", UNITS)
def test_metrics_are_those_of_the_predictions(trained, base):
    recipe, other = trained(base), table(base, 150, seed=1)
    reader = reading(recipe, "evaluate", records(other))  # with statistics of its own
    trainer = Trainer(reader.task(), recipe.trainer)
    parts = []
    result = trainer.evaluate(reader.eval_input, check_padding=True, on_records=parts.append)
    predicted = [*trainer.predict(reader.eval_input)]
    # to the 24 bits of what a batch spans
    labels = np.array([each["label"] for each in predicted])
    assert labels.dtype == np.int64
    assert np.abs(labels - other["y"]).max() <= (UNITS[base] > 1) * np.ptp(other["y"]) / 2**24
    predictions = [each["prediction"] for each in predicted]
    right = measured(other["y"], predictions)
    assert right["regression/r2"] > 0.8  # x and the time tell it
    for name, value in right.items():
        assert result.metrics[name] == pytest.approx(value, rel=1e-4), name
    assert {each.dtype for each in predictions} == {np.dtype(np.float64)}
    assert (result.proven, result.not_finite) == (True, {})

    of_pages = np.concatenate([each.predictions["prediction"] for each in parts])
    assert of_pages == pytest.approx(predictions, rel=0, abs=1e-3 * UNITS[base])


@pytest.mark.slow
@pytest.mark.parametrize("base", UNITS)
def test_inputs_lose_nothing_that_float64_has(trained, base):
    recipe, other = trained(base), table(base, 70, seed=2)
    model = load(recipe.trainer.workdir, recipe=recipe)
    assert (model.inputs["time"].dtype, model.inputs["x"].dtype) == (np.int64, np.float32)
    batch = {name: values for name, values in other.items() if name != "y"}
    predicted = model.predict(batch)
    if base < 2**31:  # as eval_dataset delivers them
        narrow = model.predict({**batch, "time": np.int32(batch["time"])})
        assert np.array_equal(narrow["prediction"], predicted["prediction"])
    workdir, training = recipe.trainer.workdir, table(base)
    parts = []
    for name in ("x", "time", "pair", "same"):
        first = training[name].flat[0]
        known, new = (
            np.float64(each[name] - first).reshape(len(each[name]), -1)
            for each in (training, other)
        )
        numbers = (new - known.mean()) / (known.std() or 1.0)
        parts += [numbers, np.zeros_like(numbers)]
    weights = {
        name: np.float64(get_variable_value(workdir, name)) for name in get_variable_names(workdir)
    }
    hidden, bias, head, last = (
        weights[f"params/{name}"]
        for name in ("layers/0/kernel", "layers/0/bias", "head/kernel", "head/bias")
    )
    outputs = np.maximum(np.concatenate(parts, 1) @ hidden + bias, 0) @ head + last
    y = training["y"] - base
    right = outputs[:, 0] * y.std() + y.mean()
    found = predicted["prediction"] - base
    assert found == pytest.approx(right, rel=0, abs=1e-4 * UNITS[base])


def test_cells_of_rows_are_centered_before_they_become_float32(trained):
    base = 10**9
    recipe, other = trained(base), table(base, 1)
    reader = reading(recipe, "predict", records(other, table(base)))
    offsets = reader.offsets
    assert offsets == {name: round(np.mean(v)) for name, v in table(base).items() if name != "x"}
    far = 2**63 - 1
    cells = {"x": 0.5, "time": f"{base + 5}.0", "pair": [far, None]}
    rows = [reader.row_record(cells), reader.row_record({"x": 0.5, "y": 7})]
    assert reader.row_record({"y": 7}) == {"y": 7}
    like = records_like(reader.description, "rows", rows, schema=reader.row_schema(SCHEMA))
    batch = next(iter(eval_dataset(like, global_batch=2, offsets=offsets)))
    np.testing.assert_array_equal(batch["time"], [base + 5 - offsets["time"], NAN])
    np.testing.assert_array_equal(batch["pair"][0], np.float32([far - offsets["pair"], NAN]))
    assert np.isnan(batch["pair"][1]).all()


@pytest.mark.slow
def test_a_run_that_begins_with_a_model_keeps_its_offsets(trained, tmp_path):
    recipe, other = (
        trained(10**9),
        records({n: v + 37 * (n != "x") for n, v in table(10**9, 99).items()}),
    )
    expected = reading(recipe, "evaluate", other)
    trainer = replace(
        recipe.trainer, workdir=str(tmp_path / "second"), max_steps=1, iterations_per_loop=1
    )
    second = replace(
        recipe,
        trainer=trainer,
        warm_start=WarmStart(init_from=recipe.trainer.workdir),
        optimizer=replace(recipe.optimizer, learning_rate=1e-9),
    )
    begun = reading(second, "train", other)
    assert begun.offsets == expected.offsets
    Trainer(begun.task(), trainer, warm_start=second.warm_start).train(begun.train_input)
    assert reading(second, "evaluate", other).offsets == expected.offsets
    results = [
        Trainer(each.task(), each.trainer).evaluate(each.eval_input).metrics
        for each in (expected, reading(second, "evaluate", other))
    ]
    assert results[0] == pytest.approx(results[1], rel=1e-3)


def test_batches_of_other_integers_are_refused(trained):
    reader = reading(trained(10**9), "evaluate", records(table(10**9, 64)))
    batches = eval_dataset(reader.eval_records, global_batch=64)
    with pytest.raises(
        InputError, match=r"the batch's .* is int32; the task takes float32 with its offset"
    ):
        Trainer(reader.task(), reader.trainer).evaluate(batches)
