"""Rows that never were converted, and other tables: what their cells mean, computed anew from the parameters."""

import csv
import json

import numpy as np
import pyarrow as pa
import pytest
from infeed_door import run_infeed
from pyarrow import parquet
from stages import without_beam

from converters import table_to_gcs
from trainer.__main__ import main as trainer_main
from trainer.checkpoints import get_variable_names, get_variable_value

# runpy warns of modules that tests of this process have imported before.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*found in sys.modules"),
]
HEADER = ["rooms", "area", "code", "garden", "kind"]
MISSING = float("nan")
# float32 does not hold all of them
LARGE = [2**24 + 1, 2**25 + 3, -(2**24) - 3, 2**31 - 1, -(2**31)]


def drawn(rows, seed, first_rooms=()):
    """Rows of a table without gaps: the kind depends on all columns."""
    rng = np.random.default_rng(seed)
    others = rng.integers(1, 9, rows - len(first_rooms)).tolist()
    for number, rooms in enumerate([*first_rooms, *others]):
        area, garden = round(float(rng.normal()), 3), ["false", "true"][rng.integers(2)]
        score = rooms / 4 + area + (garden == "true") + number % 2
        yield [rooms, area, [101, 205][number % 2], garden, "big" if score > 2 else "low"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A directory with raw/train.csv, raw/validation.csv, and a training run with its predictions in run/."""
    directory = tmp_path_factory.mktemp("rows")
    (directory / "raw").mkdir()
    for name, *options in (("train.csv", 256, 0), ("validation.csv", 40, 1, LARGE)):
        with (directory / "raw" / name).open("w") as file:
            csv.writer(file).writerows([HEADER, *drawn(*options)])
    convert(directory / "raw", directory / "shards")
    options = command(directory, directory / "shards", "--max-steps=60", "--iterations-per-loop=30")
    assert trainer_main(options) == 0
    assert trainer_main([*options, "--mode=predict"]) == 0
    return directory


def convert(raw, shards):
    with without_beam():
        table_to_gcs.main(
            [f"--raw-data-dir={raw}", f"--output={shards}", "--columns=code=category"]
        )


def command(directory, shards, *more):
    options = f"tabular --data-dir={shards} --workdir={directory}/run --target=kind --widths 16"
    return [*options.split(), "--eval-batch-size=8", *more]


@pytest.fixture(scope="module")
def expected(run):
    """expected([rooms, area, code, garden]): the probabilities of both kinds. Only NumPy and the raw csv."""
    with (run / "raw/train.csv").open() as file:
        table = list(csv.DictReader(file))
    numbers = {name: np.array([float(row[name]) for row in table]) for name in ("rooms", "area")}
    classes = {name: sorted({row[name] for row in table}) for name in ("code", "garden")}
    names = get_variable_names(run / "run")
    weights = {name: np.float64(get_variable_value(run / "run", name)) for name in names}

    def part(*words):
        (name,) = [name for name in weights if all(word in name for word in words)]
        return weights[name]

    def probabilities(rooms, area, *cells):
        parts = []
        for name, cell in (("area", area), ("rooms", rooms)):  # the model sorts them
            normal = 0.0 if cell != cell else (cell - numbers[name].mean()) / numbers[name].std()
            parts += [[normal], [float(cell != cell)]]
        for name, cell in zip(classes, cells, strict=True):
            number = classes[name].index(cell) if cell in classes[name] else -1
            parts.append(part("embeddings", name)[number + 1])
        sums = np.concatenate(parts) @ part("layers", "kernel") + part("layers", "bias")
        outputs = np.maximum(sums, 0) @ part("head", "kernel") + part("head", "bias")
        exponentials = np.exp(outputs - outputs.max())
        return exponentials / exponentials.sum()

    return probabilities


@pytest.fixture
def predicted(run, monkeypatch, capsys, tmp_path):
    """predicted(file name, its content, status) -> the lines of JSON, and stderr."""

    def predict(name, content, status=0):
        (tmp_path / name).write_bytes(content)
        command = ("predict", str(run / "run"), str(tmp_path / name), "--json")
        found, out, err = run_infeed(monkeypatch, capsys, *command)
        assert found == status, err
        return [json.loads(line) for line in out.splitlines()], err

    return predict


def as_csv(rows):
    return "".join(",".join(map(str, row)) + "\n" for row in rows).encode()


def as_parquet(**columns):
    parquet.write_table(pa.table(columns), sink := pa.BufferOutputStream())
    return sink.getvalue().to_pybytes()


def assert_are(lines, rows, expected):
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows, strict=True):
        probabilities = expected(*row)
        assert line["class"] == np.argmax(probabilities)
        assert line["class_name"] == ["big", "low"][line["class"]]
        assert line["probability"] == pytest.approx(probabilities.max(), rel=1e-5)


FIRST, SECOND, THIRD = (
    (3, 0.5, "101", "true"),
    (7, -0.25, "205", "false"),
    (MISSING, MISSING, "", ""),
)


def test_cells_of_csv_mean_what_they_mean_in_the_conversion(predicted, expected):
    rows = [
        HEADER[:4],
        (3, 0.5, 101, "true"),
        ("3.0", "0.50", "101.0", " true "),  # as pandas writes integers with gaps
        ("7.0", "-.25", "205.0", "false"),
        ("", "NA", "", ""),
    ]
    lines, err = predicted("new.csv", as_csv(rows))
    assert_are(lines, [FIRST, FIRST, SECOND, THIRD], expected)
    assert "note:" not in err
    lines, err = predicted("less.csv", as_csv([["area", "garden"], [0.5, "true"]]))
    assert_are(lines, [(MISSING, 0.5, "", "true")], expected)


def test_cells_of_parquet_mean_what_they_mean_in_the_conversion(predicted, expected):
    content = as_parquet(
        rooms=pa.array([3.0, 7.0, None]), area=pa.array([0.5, -0.25, float("nan")], pa.float32()),
        code=pa.array([101.0, 205.0, None]), garden=pa.array([True, False, None]),
    )  # fmt: skip
    lines, _ = predicted("new.parquet", content)
    assert_are(lines, [FIRST, SECOND, THIRD], expected)
    others = {"area": [0.5, None], "code": [101, None], "garden": ["true", ""]}
    content = as_parquet(rooms=pa.array([3, None], pa.int8()), **others)
    lines, _ = predicted("integers.parquet", content)
    assert_are(lines, [FIRST, THIRD], expected)


def test_classes_never_seen_are_missing_and_counted(predicted, expected):
    rows = [
        HEADER[:4],
        (3, 0.5, 999, "true"),
        (3, 0.5, "101.5", "maybe"),
        (3, 0.5, 999, ""),
        ("x", 0.5, 998, "true"),  # an error
    ]
    lines, err = predicted("new.csv", as_csv(rows), status=1)
    assert_are(lines, [(3, 0.5, "", "true"), (3, 0.5, "", ""), (3, 0.5, "", "")], expected)
    assert [line for line in err.splitlines() if "never seen" in line] == [
        "note: values of code that the model has never seen count as missing: 999, 101.5 (3 rows)",
        "note: values of garden that the model has never seen count as missing: maybe (1 row)",
    ]


def test_what_is_no_number_is_an_error_of_its_row(predicted, expected, tmp_path):
    wrong = [("inf", 0.5, 101, "true"), (3, "inf", 101, "true"), (3, "x", 101, "")]
    content = as_csv([HEADER[:4], *wrong, (3, 0.5, 101, "true")])
    lines, err = predicted("new.csv", content, status=1)
    assert_are(lines, [FIRST], expected)
    for place, problem in (
        ("2: 'rooms' is 'inf'", "an integer within int64."),
        ("3: 'area' is 'inf'", "a finite number within float32"),
        ("4: 'area' is 'x'", "a finite number within float32"),
    ):
        assert f"{tmp_path}/new.csv:{place}; it must be {problem}\n" in err
    assert "error: left out 3 of 4, which could not be read." in err


def test_complete_rows_have_the_bits_of_their_records(run, predicted):
    records = map(json.loads, (run / "run/predictions.jsonl").read_text().splitlines())
    lines, _ = predicted("new.csv", (run / "raw/validation.csv").read_bytes())
    ours, theirs = (
        sorted((each["class"], each["probability"]) for each in found) for found in (lines, records)
    )
    assert len(ours) == 40
    assert ours == theirs


def other_table(directory, name, change):
    """The options that evaluate a table of 60 other rows, each as `change(number, row)` has it; and these rows."""
    rows = [change(number, row) for number, row in enumerate(drawn(60, 2))]
    raw, shards = directory / name, directory / f"shards-of-{name}"
    raw.mkdir()
    with (raw / "validation.csv").open("w") as file:
        csv.writer(file).writerows([HEADER, *rows])
    convert(raw, shards)
    return command(directory, shards, "--mode=evaluate"), rows


def test_an_evaluation_of_another_table_means_the_same_and_counts_categories_never_seen(
    run, expected, capfd
):
    def change(number, row):
        # 101 and 205 have other numbers here
        return [*row[:2], 999 if number % 3 == 0 else row[2], *row[3:]]

    options, rows = other_table(run, "other", change)
    assert trainer_main(options) == 0
    result = json.loads((run / "run/eval_result.json").read_text())
    right = []
    for rooms, area, code, garden, kind in rows:
        number = np.argmax(expected(rooms, area, "" if code == 999 else str(code), garden))
        right.append(["big", "low"][number] == kind)
    assert result["accuracy"] == pytest.approx(np.mean(right))
    assert (result["unseen"], result["records"], result["proven"]) == (20, 60, True)
    printed = " ".join(capfd.readouterr().out.split())
    assert "categories never seen count as missing (20 values)" in printed


@pytest.mark.parametrize("mode", ["evaluate", "train"])
def test_a_class_that_the_model_does_not_have_is_refused_before_anything_is_written(
    run, mode, capfd
):
    def change(number, row):
        return [*row[:4], "mid" if row[4] == "low" else "big"]

    before = {path: path.read_bytes() for path in (run / "run").glob("*.json*")}
    options, _ = other_table(run, f"classes-{mode}", change)
    more = "--train-split=validation --max-steps=99 --global-batch-size=16"
    assert trainer_main([*options, f"--mode={mode}", *more.split()]) == 2
    printed = " ".join(capfd.readouterr().err.split())
    assert "'kind' has the class 'mid', which the model does not have" in printed
    assert {path: path.read_bytes() for path in before} == before
