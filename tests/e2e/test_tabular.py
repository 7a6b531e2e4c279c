"""From a csv to a trained model: every command of a table's journey, for a number that some rows lack."""

import csv
import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from sweep import SWEEP

from converters import table_to_gcs
from pipeline.shards.example_decoding import decode_example
from pipeline.sources.open_dataset import open_dataset
from pipeline.tf_cpu import tf
from trainer.__main__ import main as trainer_main
from trainer.commands.predict import main as predict_main

CITIES = {"Oslo": 1.0, "Rome": -1.0}


def lines(rows, seed):
    """price = 3 area + what the city adds. Some areas, cities and prices are missing."""
    found, rng = [], np.random.default_rng(seed)
    for number, area in enumerate(rng.normal(size=rows).round(3).tolist()):
        city = ["Oslo", "Rome"][number % 2]
        price = 100 + 3 * area + 5 * CITIES[city]
        known = ["" if number % 50 == 7 else area, "" if number % 50 == 9 else city]
        found.append([*known, "" if number % 5 == 0 else price])
    return found


@pytest.fixture
def houses(tmp_path, without_beam):
    """The shards of a table, and rows that were not converted."""
    (tmp_path / "raw").mkdir()
    for name, rows, seed in (("train.csv", 400, 0), ("validation.csv", 130, 1)):
        with (tmp_path / "raw" / name).open("w") as file:
            csv.writer(file).writerows([["area", "city", "price"], *lines(rows, seed)])
    table_to_gcs.main([f"--raw-data-dir={tmp_path}/raw", f"--output={tmp_path}/shards"])
    (tmp_path / "new.csv").write_text("city,area,note\nOslo,0.5,x\nRome,-0.5,\nParis,NA,\n")
    parquet.write_table(
        pa.table({"city": ["Oslo", "Rome", None], "area": [0.5, -0.5, None]}),
        tmp_path / "new.parquet",
    )
    return tmp_path


@pytest.mark.slow
def test_a_number_is_learned_evaluated_exported_and_predicted_from_files_never_converted(
    run_forked, houses
):
    command = f"-m trainer tabular --data-dir={houses}/shards --workdir={houses}/run --target=price"
    command = f"{command} --columns area city --max-steps=200 --iterations-per-loop=20".split()
    code, printed = run_forked([*command, "--keep-best=regression"], timeout=200)
    assert code == 2, printed
    assert "--keep-best='regression' is not a number that an evaluation reports." in printed
    assert "regression/r2, regression/rmse." in printed
    command.append("--keep-best=regression/rmse")
    code, printed = run_forked([*command, f"--export-path={houses}/export"], timeout=200)
    assert code == 0, printed
    result = json.loads((houses / "run/eval_result.json").read_bytes())
    assert (result["records"], result["labelled"]) == (130, 104)
    assert (result["proven"], result["not_finite"]) == (True, {})
    assert result["regression/r2"] > 0.9
    assert np.isfinite(result["loss"])
    assert list((houses / "export").iterdir())

    new = [f"{houses}/new.csv", f"{houses}/new.parquet", f"--output={houses}/made.jsonl"]
    predict = ["-m", "trainer.commands.predict", f"{houses}/run", "--step=best"]
    code, printed = run_forked([*predict, *new], timeout=200)
    assert code == 0, printed
    rows = map(json.loads, (houses / "made.jsonl").read_text().splitlines())
    prices = [row["prediction"] for row in rows]
    assert prices[:2] == [pytest.approx(106.5, abs=2), pytest.approx(93.5, abs=2)]
    assert np.isfinite(prices[2])
    assert prices[3:5] == prices[:2]  # of the parquet


SECONDS, NANOSECONDS = (10**9, 1), (17 * 10**17, 10**9)  # base and unit


def converted(directory, base, unit):
    """Shards of a target that follows from a time within 100 units; returns the targets of the validation.

    In float32, both would be one number."""
    (directory / "raw").mkdir()
    targets = {}
    for split, count in (("train", 400), ("validation", 100)):
        rng = np.random.default_rng(count)
        times = rng.integers(0, 100, count).tolist()
        noise = rng.integers(-9, 9, count).tolist()
        targets[split] = [base + (3 * t + n) * unit for t, n in zip(times, noise, strict=True)]
        # the validation has another mean, of which the model must not know
        cells = [base + (t + 7 * (split == "validation")) * unit for t in times]
        with (directory / f"raw/{split}.csv").open("w") as file:
            rows = zip(cells, targets[split], strict=True)
            csv.writer(file).writerows([["time", "y"], *rows])
    table_to_gcs.main([f"--raw-data-dir={directory}/raw", f"--output={directory}/shards"])
    return targets["validation"]


def assert_measured(metrics, pairs, base, unit):
    """The metrics of an evaluation are those of pairs of a label and a prediction, in float64."""
    y, p = np.array([(label - base, made - base) for label, made in pairs]).T / unit
    right = {
        "regression/mean_absolute_error": np.abs(y - p).mean() * unit,
        "regression/rmse": np.sqrt(((y - p) ** 2).mean()) * unit,
        "regression/r2": 1 - ((y - p) ** 2).sum() / ((y - y.mean()) ** 2).sum(),
    }
    assert right["regression/r2"] > 0.9
    assert {name: metrics[name] for name in right} == pytest.approx(right, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("base", "unit"), [NANOSECONDS, *[SECONDS] * SWEEP])
def test_large_integers_mean_the_same_in_evaluations_predictions_and_exports(
    tmp_path, without_beam, base, unit
):
    targets = converted(tmp_path, base, unit)
    command = f"tabular --data-dir={tmp_path}/shards --workdir={tmp_path}/run --target=y"
    command += " --max-steps=300 --iterations-per-loop=100"
    for option in (f"--export-path={tmp_path}/export", "--mode=predict"):
        assert trainer_main([*command.split(), option]) == 0
    new = [f"{tmp_path}/raw/validation.csv", f"--output={tmp_path}/made.jsonl"]
    assert not predict_main([f"{tmp_path}/run", *new])

    def lines(file):
        return [json.loads(line) for line in (tmp_path / file).read_text().splitlines()]

    recorded, rows = lines("run/predictions.jsonl"), lines("made.jsonl")
    assert sorted(each["label"] for each in recorded) == pytest.approx(
        sorted(targets), rel=0, abs=1e-4 * unit
    )
    found = json.loads((tmp_path / "run/eval_result.json").read_bytes())
    (saved,) = (tmp_path / "export").iterdir()
    served = tf.saved_model.load(str(saved)).signatures
    payloads = [*open_dataset(f"{tmp_path}/shards", "validation")]
    columns = [decode_example(payload) for payload in payloads]
    stored = {"time": tf.constant([each["time"][0] for each in columns], tf.int64)}
    answers = {
        "serving_default": served["serving_default"](examples=tf.constant(payloads)),
        "features": served["features"](**stored),
        "arrays": served["arrays"](**stored),
    }
    everywhere = {"recorded": [(each["label"], each["prediction"]) for each in recorded]}
    everywhere["rows"] = [
        (target, each["prediction"]) for target, each in zip(targets, rows, strict=True)
    ]
    for name, answer in answers.items():
        assert answer["prediction"].dtype == tf.float64
        everywhere[name] = [
            (each["y"][0], prediction)
            for each, prediction in zip(columns, answer["prediction"].numpy().tolist(), strict=True)
        ]
    for pairs in everywhere.values():
        assert_measured(found, pairs, base, unit)


@pytest.mark.slow
@pytest.mark.sweep
def test_two_hosts_know_large_integers(run_hosts, tmp_path, without_beam):
    """One does, as the test before shows: both measure what follows from the raw numbers."""
    targets, files = converted(tmp_path, *NANOSECONDS), {"data_dir": f"{tmp_path}/shards"}
    ended = run_hosts("large_integers", 2, 1, host_timeout_seconds=60, **files)
    for process in ended:
        assert process.code == 0, process.printed
        pairs = process.report["predicted"]
        assert sorted(label for label, _ in pairs) == pytest.approx(sorted(targets), rel=0, abs=1e5)
        assert_measured(process.report["metrics"], pairs, *NANOSECONDS)
    assert ended[0].report["metrics"] == ended[1].report["metrics"]


@pytest.mark.slow
def test_two_processes_refuse_a_number_that_means_something_else(
    run_commands, tmp_path, without_beam
):
    """The classes churn and stay by a rule on x; other data number the same rule without names, the other way around."""
    x = np.random.default_rng(3).normal(size=300).round(3)
    for name, churns in (("named", np.where(x > 0, "churn", "stay")), ("numbers", x <= 0)):
        (tmp_path / name).mkdir()
        table = pa.table({"x": x, "y": churns.astype(int) if name == "numbers" else churns})
        for split in ("train", "validation"):
            parquet.write_table(table, tmp_path / f"{name}/{split}.parquet")
        table_to_gcs.main([f"--raw-data-dir={tmp_path}/{name}", f"--output={tmp_path}/{name}-out"])

    def on_two(data, *options):
        options = [f"--workdir={tmp_path}/run", f"--data-dir={tmp_path}/{data}-out", *options]
        return run_commands([[*options, "--target=y"]] * 2, recipe="tabular", timeout_seconds=200)

    ended = on_two("named", "--max-steps=60", "--learning-rate=0.01")
    assert [process.code for process in ended] == [0, 0], ended[0].printed
    result = json.loads((tmp_path / "run/eval_result.json").read_text())
    assert result["accuracy"] > 0.9
    assert (result["proven"], result["classes"]) == (True, "")

    evaluate = "--mode=evaluate"
    for process in on_two("numbers", evaluate):
        assert process.code in (2, 3)
        assert "'y' has numbers, and categories in the data of the model" in process.printed
    assert on_two("numbers", evaluate, "--same-classes")[0].code == 0
    agreed = json.loads((tmp_path / "run/eval_result.json").read_text())
    # churn is 0 and stay is 1 here and there: y of the numbers is 1 where x <= 0
    assert agreed["accuracy"] == result["accuracy"]
    assert agreed["classes"] == "class numbers assumed to match (same_classes)"

    (tmp_path / "run/description.json").unlink()
    for process in on_two("named", evaluate):
        assert process.code in (2, 3)
        assert "run/description.json is missing" in process.printed
