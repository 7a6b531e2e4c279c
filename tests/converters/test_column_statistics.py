"""Statistics of columns: exact, the same bytes for any order of records, shown by describe."""

import json
import statistics
from fractions import Fraction

import numpy as np
import pytest

from beam_jobs.column_sums import ColumnSums
from pipeline import describe
from pipeline.errors import SchemaError
from pipeline.shards.column_statistics import read_statistics
from pipeline.storage.schemes import open_storage

pytestmark = pytest.mark.usefixtures("without_beam")


@pytest.mark.parametrize(
    "scale", [1e-45, 1.0, 1e30, 10.0 ** np.linspace(-40, 30, 1000)], ids=["tiny", "one", "huge", "mixed"]
)
def test_sums_are_exact_and_do_not_depend_on_the_order(scale):
    array = (np.random.default_rng(0).normal(size=1000) * scale).astype(np.float32)
    whole = ColumnSums()
    for part in range(3):
        whole.add(ColumnSums.of(array[part::3], classes=False))
    assert whole == ColumnSums.of(array[::-1], classes=False)
    found, values = whole.statistics(), array.tolist()
    assert found.mean == float(sum(map(Fraction, values)) / len(values))
    assert found.deviation == pytest.approx(statistics.pstdev(map(Fraction, values)), rel=1e-12)
    assert (found.count, found.missing, found.min, found.max) == (1000, 0, min(values), max(values))


def test_a_split_has_its_own_statistics_whatever_the_shards(table, raw_tables, tmp_path, capsys):
    rows = [f"{'' if i == 3 else i / 8},{i * 2**40},{'ab'[i % 2] if i else ''}\n" for i in range(40)]
    for name, some in (("train", rows), ("validation", rows[:2])):
        table(f"{name}.csv", "price,big,city\n" + "".join(some))
    flags = ("--columns=city=category",)
    raw_tables.convert(tmp_path / "one", *flags)
    raw_tables.convert(tmp_path / "many", *flags, "--num-train-shards=7")
    raw_tables.convert(tmp_path / "later", *flags, "--splits=validation")
    raw_tables.convert(tmp_path / "later", *flags, "--splits=train")
    files = {(tmp_path / out / "_summary/columns.json").read_bytes() for out in ("one", "many", "later")}
    assert len(files) == 1
    found = read_statistics(open_storage(str(tmp_path)), str(tmp_path / "one"))
    train = found["train"]
    assert (train["price"].count, train["price"].missing) == (39, 1)
    assert train["price"].mean == sum(i / 8 for i in range(40) if i != 3) / 39
    assert train["big"].mean == 19.5 * 2**40
    assert train["big"].deviation == pytest.approx(np.std(np.arange(40)) * 2**40, rel=1e-15)
    assert dict(train["city"].categories) == {"a": 19, "b": 20}
    assert (train["city"].missing, found["validation"]["city"].categories) == (1, {"a": 0, "b": 1})
    capsys.readouterr()
    describe.main([str(tmp_path / "one"), "--samples=0"])
    shown = capsys.readouterr().out
    assert "train: columns" in shown
    assert "a 19" in shown


def test_a_split_that_is_replaced_replaces_its_statistics(table, raw_tables, tmp_path):
    table("train.csv", "a\n1\n")
    raw_tables.convert(tmp_path / "out")
    table("train.csv", "a\n1\n3\n")
    raw_tables.convert(tmp_path / "out", "--overwrite")
    assert read_statistics(open_storage("x"), str(tmp_path / "out"))["train"]["a"].mean == 2


def test_a_damaged_file_of_statistics_is_never_trusted(table, raw_tables, tmp_path):
    table("train.csv", "a\n1\n")
    raw_tables.convert(tmp_path / "out")
    file = tmp_path / "out/_summary/columns.json"
    file.write_text(file.read_text().replace('"count": 1', '"count": 2'))
    with pytest.raises(SchemaError, match="its checksum is .*Convert the table again"):
        read_statistics(open_storage("x"), str(tmp_path / "out"))
    raw_tables.convert(tmp_path / "out")
    assert json.loads(file.read_bytes())["splits"]["train"]["a"]["count"] == 1
