"""From a csv to a trained model: every command of a table's journey, for a number that some rows lack."""

import csv
import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from converters import table_to_gcs

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
    command = [
        "-m",
        "trainer",
        "tabular",
        f"--data-dir={houses}/shards",
        f"--workdir={houses}/run",
        "--target=price",
    ]
    command += ["--columns", "area", "city", "--max-steps=200", "--iterations-per-loop=20"]
    code, printed = run_forked([*command, "--keep-best=regression"], timeout=200)
    assert code == 2, printed
    assert "--keep-best='regression' is not a number that an evaluation reports." in printed
    assert "regression/r2, regression/rmse." in printed
    command.append("--keep-best=regression/rmse")
    code, printed = run_forked([*command, f"--export-path={houses}/export"], timeout=200)
    assert code == 0, printed
    result = json.loads((houses / "run/eval_result.json").read_bytes())
    assert (result["records"], result["labelled"], result["proven"], result["not_finite"]) == (
        130,
        104,
        True,
        {},
    )
    assert result["regression/r2"] > 0.9
    assert np.isfinite(result["loss"])
    assert list((houses / "export").iterdir())

    new = [f"{houses}/new.csv", f"{houses}/new.parquet", f"--output={houses}/made.jsonl"]
    code, printed = run_forked(
        ["-m", "trainer.commands.predict", f"{houses}/run", "--step=best", *new], timeout=200
    )
    assert code == 0, printed
    prices = [
        json.loads(line)["prediction"] for line in (houses / "made.jsonl").read_text().splitlines()
    ]
    assert prices[:2] == [pytest.approx(106.5, abs=2), pytest.approx(93.5, abs=2)]
    assert np.isfinite(prices[2])
    assert prices[3:5] == prices[:2]  # of the parquet


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
    assert agreed["classes"] == "classes taken to agree (same_classes)"

    (tmp_path / "run/description.json").unlink()
    for process in on_two("named", evaluate):
        assert process.code in (2, 3)
        assert "run/description.json is missing" in process.printed
