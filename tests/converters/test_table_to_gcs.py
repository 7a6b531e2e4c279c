"""Tables: wrong options, layouts and cells, each one clear error; the command line."""

from dataclasses import replace

import pytest

from converters.table.columns import Column
from pipeline.errors import LabelError, OptionError, RawDataError

pytestmark = pytest.mark.usefixtures("without_beam")

IMAGES = ("--image-column=file", "--label-column=animal")


WRONG = [
    (["--image-column=fiel"], OptionError, r"--image-column: \S+train-0.csv has no column 'fiel'\. Did you mean"),
    (["--image-column=file", "--target-columns=weight,wieght"], OptionError, r"--target-columns: .*'wieght'.*'weight'"),
    (["--image-column=file", "--target-columns=weight,"], OptionError, "a column is empty, or is listed twice"),
    ([*IMAGES, "--key-column=id"], OptionError, r"--key-column: .* has no column 'id'\. Known: animal, file"),
    ([*IMAGES, "--delimiter=||"], OptionError, "--delimiter='||': it must be one character"),
    (["--image-column=file", "--label-file=x"], OptionError, "--label-file names the classes of --label-column or"),
    ([*IMAGES, "--jpeg-quality=0"], OptionError, "--jpeg-quality=0: must be 1 to 100"),
    ([*IMAGES, "--splits=test"], RawDataError, r"does not have the test split\. It has: train, validation"),
]


@pytest.mark.parametrize(("flags", "error", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_option_is_one_clear_error_and_writes_nothing(raw_tables, tmp_path, flags, error, message):
    with pytest.raises(error, match=message):
        raw_tables.write().convert(tmp_path / "out", *flags)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("flags", [("--image-column=file", "--text-column=note"), (*IMAGES, "--target-columns=weight")])
def test_options_that_exclude_each_other_are_one_line(raw_tables, tmp_path, capsys, flags):
    with pytest.raises(SystemExit):
        raw_tables.write().convert(tmp_path / "out", *flags)
    error = capsys.readouterr().err
    assert error.startswith(f"error: argument {flags[-1].split('=')[0]}: not allowed with argument --")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        ("photos.csv", "text,label\na,b\n", RawDataError, r"no table of a split, .*photos.csv.*--validation-fraction"),
        ("train.xls", "", RawDataError, r"has no tables \(\.csv, .*, \.feather\)\. It has: train\.xls"),
        ("train.csv", "", RawDataError, "has no header with the names of its columns: it is empty"),
        ("train.csv", "text,label\na,\n", LabelError, "no table has a label in column 'label'"),
    ],
)
def test_a_layout_that_is_not_quite_right_is_one_clear_error(table, raw_tables, tmp_path, name, text, error, message):
    table(name, text)
    with pytest.raises(error, match=message):
        raw_tables.convert(tmp_path / "out", "--text-column=text", "--label-column=label")


def test_a_table_without_a_split_is_noted_with_its_likely_purpose(table, raw_tables, tmp_path, capsys):
    table("train.csv", "text,label\nsome,b\n")
    table("labels.csv", "a\nb\n")
    flags = ("--text-column=text", "--label-column=label")
    raw_tables.convert(tmp_path / "out", *flags)
    assert (
        f"note: {tmp_path}/raw/labels.csv is not converted: its name does not begin with a split. If"
        in capsys.readouterr().out
    )
    raw_tables.convert(tmp_path / "named", *flags, f"--label-file={tmp_path}/raw/labels.csv")
    assert "labels.csv" not in capsys.readouterr().out


def test_a_label_column_with_over_100000_classes_is_refused(table, raw_tables, tmp_path):
    table("train.csv", "text,label\n" + "".join(f"a,{i}\n" for i in range(100_001)))
    with pytest.raises(LabelError, match=r"over 100,000 different values\. Is it a class\? .* --label-file"):
        raw_tables.convert(tmp_path / "out", "--text-column=text", "--label-column=label")


LABEL = Column("a", "category", names=("x", "y"), required=True)
TARGETS = [LABEL, replace(LABEL, shape=(None,), separator="|"), Column("b", "float32", (1,), parts=("a",))]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("cell", ["z", True, {"x": 1}, "1\n2", 10**400, [1.5], "\ud800"])
def test_a_target_names_the_value_that_it_cannot_convert(target, cell):
    with pytest.raises(ValueError, match=r"^('a' is .*; (it must be a finite number within float32|a label is a text)|"
                       r"'a' is .*, which is not Unicode text|unknown label '.*Known: x, y)"):  # fmt: skip
        target.value({"a": cell}, bytes)
    with pytest.raises(ValueError, match="no 'a' in it"):
        target.value({"b": cell}, bytes)
