"""Tables by command: what a model says of other data, computed anew from its parameters and the raw csv alone."""

import csv
import json

import numpy as np
import pytest
from stages import without_beam

from converters import table_to_gcs
from trainer.__main__ import main as trainer_main
from trainer.checkpoints import get_variable_names, get_variable_value

# runpy warns of modules that tests of this process have imported before.
pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules")
OPTIONS = ("tabular", "--target=y", "--widths=32", "--max-steps=300", "--iterations-per-loop=100")


def write(directory, name, rows, header=("city", "x", "y")):
    """A dataset of one split, converted: rows of (city, x, y)."""
    raw, split = directory / f"raw_{name}", "train" if name.startswith("train") else "test"
    raw.mkdir()
    with (raw / f"{split}.csv").open("w") as file:
        csv.writer(file).writerows([header, *rows])
    with without_beam():
        table_to_gcs.main([f"--raw-data-dir={raw}", f"--output={directory / name}"])


def drawn(seed, count, cities, low=-3.0, high=3.0):
    rng = np.random.default_rng(seed)
    signs = {"Bonn": 1, "Oslo": -1, "Rome": 1, "Zug": 1}
    for _ in range(count):
        city, x = cities[rng.integers(len(cities))], round(rng.uniform(low, high), 3)
        yield city, x, "yes" if signs[city] * x > 0 else "no"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """train, with a model in run; and data that number or normalize differently."""
    directory = tmp_path_factory.mktemp("meaning")
    write(directory, "train", drawn(0, 600, ("Bonn", "Oslo", "Rome")))
    write(directory, "others", drawn(1, 90, ("Oslo", "Rome", "Zug")))  # Oslo is 1 to the model, and 0 here
    write(directory, "far", drawn(2, 80, ("Bonn", "Oslo", "Rome"), 0.5, 9.0))  # another mean and deviation of x
    write(directory, "classes", ((city, x, {"no": "zero"}.get(y, y)) for city, x, y in drawn(3, 80, ("Bonn", "Oslo"))))
    write(directory, "only_yes", (row for row in drawn(4, 160, ("Oslo", "Rome")) if row[2] == "yes"))
    return directory


@pytest.fixture
def train(directory, capsys):
    """train(data, *flags) -> exit code and what was printed, of the trainer with the work directory run."""

    def command(data, *flags):
        code = trainer_main([*OPTIONS, f"--data-dir={directory / data}", f"--workdir={directory}/run", *flags])
        return code, "".join(capsys.readouterr())

    if not (directory / "run").exists():
        code, printed = command("train", "--eval-split=train[:100]")
        assert code == 0, printed
    return command


def raw(directory, name):
    (path,) = (directory / f"raw_{name}").iterdir()
    with path.open() as file:
        return list(csv.DictReader(file))


def right_in_numpy(directory, name):
    """Whether the model is right about each row of a raw table. Only the parameters, and the raw table of training."""
    weights = {
        each: np.float64(get_variable_value(directory / "run", each)) for each in get_variable_names(directory / "run")
    }
    training, rows = raw(directory, "train"), raw(directory, name)
    cities, classes = (sorted({row[column] for row in training}) for column in ("city", "y"))
    x = np.array([float(row["x"]) for row in training])

    def part(*words):
        (array,) = (value for each, value in weights.items() if all(word in each for word in words))
        return array

    for row in rows:
        number = cities.index(row["city"]) if row["city"] in cities else -1
        inputs = [[(float(row["x"]) - x.mean()) / x.std()], [0.0], part("embeddings", "city")[number + 1]]
        hidden = np.maximum(np.concatenate(inputs) @ part("layers", "kernel") + part("layers", "bias"), 0)
        yield classes[np.argmax(hidden @ part("head", "kernel") + part("head", "bias"))] == row["y"]


@pytest.mark.parametrize(("data", "unseen"), [("others", "Zug"), ("far", None), ("only_yes", None)])
def test_an_evaluation_of_other_data_means_what_numpy_says(train, directory, data, unseen):
    code, printed = train(data, "--mode=evaluate", "--eval-split=test")
    assert code == 0, printed
    result, right = json.loads((directory / "run/eval_result.json").read_text()), [*right_in_numpy(directory, data)]
    assert result["accuracy"] == pytest.approx(np.mean(right))
    assert np.mean(right) > 0.85
    count = sum(row["city"] == unseen for row in raw(directory, data))
    assert (result["unseen"], result["records"], result["proven"]) == (count, len(right), True)
    assert (f"proven exact; categories never seen count as missing ({count} value" in printed) == (count > 0)


def test_predictions_and_exports_mean_the_same(train, directory):
    code, printed = train("others", "--mode=predict", "--eval-split=test")
    assert code == 0, printed
    lines = [json.loads(line) for line in (directory / "run/predictions.jsonl").read_text().splitlines()]
    right = sum(line["class"] == line["label"] for line in lines)
    assert right == sum(right_in_numpy(directory, "others"))
    code, printed = train("others", "--mode=export", "--eval-split=test")
    assert code == 2
    assert "the evaluation split numbers the categories of 'city' differently" in " ".join(printed.split())


@pytest.mark.parametrize("mode", ["evaluate", "train"])
def test_a_class_that_the_model_does_not_have_is_refused_before_anything_is_written(train, directory, mode):
    before = {path: path.read_bytes() for path in (directory / "run").glob("*.json*")}
    code, printed = train("classes", f"--mode={mode}", "--train-split=test", "--eval-split=test", "--max-steps=999")
    assert code == 2
    told = "split 'test': 'y' has the class 'zero', which the model does not have. Its 2 classes are no, yes."
    assert told in " ".join(printed.split())
    assert {path: path.read_bytes() for path in before} == before
