"""Rows to predict are read as those of the run were: units of times, decimal marks, delimiters and markers of missing values."""

import datetime
import json

import numpy as np
import pyarrow as pa
import pytest
from infeed_door import run_infeed
from pyarrow import parquet
from stages import without_beam

from converters import table_to_gcs
from trainer.__main__ import main as trainer_main

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*found in sys.modules")]
DAYS = np.array(["2026-01-01", "2026-03-05", "2025-12-31", "2024-02-29"], "datetime64[D]")


@pytest.fixture
def trained(tmp_path):
    """trained(name, write, *flags): the work directory of two steps on a table that `write` writes."""

    def train(name, write, *flags):
        raw = tmp_path / "raw"
        raw.mkdir()
        write(raw / name)
        with without_beam():
            table_to_gcs.main([f"--raw-data-dir={raw}", f"--output={tmp_path}/shards", *flags])
        options = f"tabular --data-dir={tmp_path}/shards --workdir={tmp_path}/run --widths 4"
        options += " --eval-split=train --max-steps=2 --iterations-per-loop=2"
        options += " --global-batch-size=4 --target=y"
        assert trainer_main(options.split()) == 0
        return tmp_path / "run"

    return train


@pytest.fixture
def predicted(tmp_path, monkeypatch, capsys):
    """predicted(run, name, write) -> the predictions for a table that `write` writes, or the error."""

    def predict(run, name, write):
        write(tmp_path / name)
        capsys.readouterr()  # what the training printed
        command = ("predict", str(run), str(tmp_path / name), "--json")
        status, out, err = run_infeed(monkeypatch, capsys, *command)
        return err if status else [json.loads(line)["prediction"] for line in out.splitlines()]

    return predict


def days(kind):
    cells = pa.array(DAYS.astype("datetime64[us]").astype(datetime.datetime), pa.timestamp("us"))
    return lambda path: parquet.write_table(
        pa.table({"day": cells.cast(kind) if kind else cells, "y": [1.5, 2.0, 4.0, 3.0]}), path
    )


def test_times_to_predict_are_read_in_the_unit_of_the_run(trained, predicted):
    run = trained("train.parquet", days(pa.date32()))
    same = predicted(run, "new.parquet", days(pa.date32()))
    assert len(set(same)) == 4
    for kind in (pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("s")):
        assert predicted(run, "new.parquet", days(kind)) == same
    zone = predicted(run, "new.parquet", days(pa.timestamp("ms", "UTC")))
    assert "has ms since 1970-01-01 UTC, and days since 1970-01-01 is expected" in zone


def text(rows):
    return lambda path: path.write_text("x;y\n" + "".join(f"{row};1,5\n" for row in rows))


def test_cells_without_a_value_are_what_missing_made_of_them(trained, predicted):
    def write(rows):
        return lambda path: path.write_text("c,r,y\n" + "".join(f"{row},1.5\n" for row in rows))

    rows = ["NO,1", "SE,?", ",3", "NO,4"]
    run = trained("train.csv", write(rows), "--missing=r=-5,c=SE", "--columns=c=category")
    numbers = predicted(run, "new.csv", write(["NO,?", "NO,-5", ",1", "SE,1", "NO,1"]))
    assert numbers[0] == numbers[1] != numbers[4]
    assert numbers[2] == numbers[3] != numbers[4]


def test_texts_to_predict_are_read_in_the_format_of_the_run(trained, predicted):
    flags = ("--delimiter=;", "--decimal=,", "--missing-values=lost")
    run = trained("train.csv", text(["1,5", "lost", "-3,25", "7,0"]), *flags)
    first, missing, again = predicted(run, "new.csv", text(["2,5", "lost", "2,50"]))
    assert first == again != missing
    assert "'?'; it must be a finite number" in predicted(run, "new.csv", text(["?"]))
