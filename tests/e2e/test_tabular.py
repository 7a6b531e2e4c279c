"""From a csv to a trained model: every command of a table's journey, for a class and for a number."""

import csv
import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from converters import table_to_gcs

pytestmark = [pytest.mark.usefixtures("without_beam"), pytest.mark.long]

CITIES = {"Oslo": 1.0, "Rome": -1.0}


def lines(rows, seed):
    """price = 3 area + what the city adds; kind: whether that is large. Some areas and cities are missing."""
    found, rng = [], np.random.default_rng(seed)
    for number, area in enumerate(rng.normal(size=rows).round(3).tolist()):
        city = ["Oslo", "Rome"][number % 2]
        price = 100 + 3 * area + 5 * CITIES[city]
        known = ["" if number % 50 == 7 else area, "" if number % 50 == 9 else city]
        found.append([*known, price, "big" if price > 100 else "low"])
    return found


@pytest.fixture(scope="module")
def houses(tmp_path_factory):
    """The shards of a table, and rows that were not converted."""
    directory = tmp_path_factory.mktemp("houses")
    (directory / "raw").mkdir()
    header = ["area", "city", "price", "kind"]
    for name, rows, seed in (("train.csv", 400, 0), ("validation.csv", 130, 1)):
        with (directory / "raw" / name).open("w") as file:
            csv.writer(file).writerows([header, *lines(rows, seed)])
    with pytest.MonkeyPatch.context() as patch:
        from stages import Stages

        from beam_jobs import graph

        patch.setattr(graph, "pipeline_of", Stages)
        table_to_gcs.main([f"--raw-data-dir={directory}/raw", f"--output={directory}/shards"])
    with (directory / "new.csv").open("w") as file:
        csv.writer(file).writerows(
            [["city", "area", "note"], ["Oslo", 0.5, "x"], ["Rome", -0.5, ""], ["Paris", "NA", ""]]
        )
    parquet.write_table(
        pa.table({"city": ["Oslo", "Rome", None], "area": [0.5, -0.5, None]}), directory / "new.parquet"
    )
    return directory


def trained(run_forked, houses, workdir, *flags):
    command = ["-m", "trainer", "tabular", f"--data-dir={houses}/shards", f"--workdir={workdir}", *flags]
    code, printed = run_forked([*command, "--max-steps=200", "--iterations-per-loop=20"], timeout=200)
    assert code == 0, printed
    return json.loads((workdir / "eval_result.json").read_bytes())


def predicted(run_forked, houses, workdir, name="new.csv"):
    output = workdir / f"{name}.jsonl"
    command = ["-m", "trainer.predict", str(workdir), f"{houses}/{name}", f"--output={output}"]
    code, printed = run_forked(command, timeout=200)
    assert code == 0, printed
    return [json.loads(line) for line in output.read_text().splitlines()]


def test_a_number_is_predicted_from_a_csv_that_was_never_converted(run_forked, houses, tmp_path):
    result = trained(run_forked, houses, tmp_path, "--target=price", "--columns", "area", "city")
    assert result["records"] == 130
    assert result["regression/r2"] > 0.9
    first, second, third = predicted(run_forked, houses, tmp_path)
    assert first["prediction"] == pytest.approx(106.5, abs=2)
    assert second["prediction"] == pytest.approx(93.5, abs=2)
    assert np.isfinite(third["prediction"])
    from_parquet = predicted(run_forked, houses, tmp_path, "new.parquet")
    assert [each["prediction"] for each in from_parquet[:2]] == [first["prediction"], second["prediction"]]


def test_a_class_is_predicted_by_name(run_forked, houses, tmp_path):
    result = trained(
        run_forked, houses, tmp_path, "--target=kind", "--columns", "area", "city", f"--export-path={tmp_path}/export"
    )
    assert result["accuracy"] > 0.9
    first, second, _ = predicted(run_forked, houses, tmp_path)
    assert (first["class_name"], second["class_name"]) == ("big", "low")
    assert list((tmp_path / "export").iterdir())
