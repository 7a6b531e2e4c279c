"""The recipe `images` on shards of a converter: every mode, with every augmentation there is."""

import contextlib
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import OptionError
from pipeline.shards.manifest import update_manifest
from pipeline.storage.schemes import open_storage
from trainer.commands.running import run
from trainer.config import TrainerConfig
from trainer.recipes.images import Config

CHANGES = {"augmentation": "trivial", "color_jitter": 0.4, "random_erasing": 0.5}
CHANGES |= {"mixup": 0.2, "cutmix": 1.0, "label_smoothing": 0.1}


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    """The config of a run that was trained for three steps, and evaluated."""
    sizes = {"global_batch_size": 16, "eval_batch_size": 100, "max_steps": 3}
    settings = TrainerConfig(workdir=str(tmp_path_factory.mktemp("images")), **sizes)
    config = Config(data_dir=str(digits[1]), size=16, widths=(4, 8), trainer=settings, **CHANGES)
    run(config)
    return config


def result_of(config, name="eval_result.json"):
    return json.loads((Path(config.trainer.workdir) / name).read_text())


@pytest.fixture(scope="module")
def predicted(trained):
    """The lines of its predictions, and what the command printed."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        run(replace(trained, mode="predict"))
    lines = (Path(trained.trainer.workdir) / "predictions.jsonl").read_text().splitlines()
    return [*map(json.loads, lines)], " ".join(printed.getvalue().split())


def heard(capsys):
    return " ".join(capsys.readouterr().out.split())


def test_training_ends_with_an_exact_evaluation(trained):
    result = result_of(trained)
    counted = [result[name] for name in ("records", "num_records", "proven", "step")]
    assert counted == [368, 368, True, 3]
    assert 0 <= result["accuracy"] <= result["top5_accuracy"] <= 1


def test_the_speed_and_the_goodput_of_the_training_are_in_a_file(trained):
    measured = result_of(trained, "train_result.json")
    assert measured["examples_per_second"] == pytest.approx(16 * measured["steps_per_second"])
    assert measured["tflops_per_second"] > 0
    assert measured["mfu"] is None  # a CPU has no known peak
    assert measured["goodput"] == measured["productive_seconds"] / measured["wall_seconds"] < 1


def test_predictions_name_the_classes_and_agree_with_the_evaluation(trained, predicted):
    lines, printed = predicted
    assert [line["index"] for line in lines] == list(range(368))
    names = {(line[kind], line[f"{kind}_name"]) for line in lines for kind in ("label", "class")}
    assert len({label for label, _ in names}) == len(names) == 10  # one name for each
    right = sum(line["class"] == line["label"] for line in lines)
    assert right / 368 == result_of(trained)["accuracy"]
    assert f"368 predictions written to {trained.trainer.workdir}/predictions.jsonl" in printed
    examples = trained.eval_records.examples(["image/filename"])
    expected = [example["image/filename"] for example in examples]
    assert [line["file"].encode() for line in lines] == expected


def test_the_page_of_an_evaluation_agrees_with_the_predictions(trained, predicted, tmp_path):
    path = tmp_path / "pages" / "report.html"
    run(replace(trained, mode="evaluate", report=str(path)))
    label, found = np.array([(each["label"], each["class"]) for each in predicted[0]]).T
    names, html = sorted({*label.tolist(), *found.tolist()}), path.read_text()
    matrix = html.partition('<table class="matrix">')[2].partition("</table>")[0]
    counts = [re.findall("<td[^>]*>([0-9,]*)</td>", row) for row in matrix.split("<tr>")[2:]]
    expected = [[np.sum((label == row) & (found == column)) for column in names] for row in names]
    assert [[int(count or 0) for count in row] for row in counts] == expected
    counted = "<strong>368 of 368</strong><span>records counted</span><span>proven: every record"
    assert counted in html
    assert f"{result_of(trained)['crc']:08x}" in html
    assert html.count("<img ") == min(24, np.sum(label != found))


def test_a_trained_model_can_be_evaluated_on_another_part_of_the_data(trained, capsys):
    run(replace(trained, mode="evaluate", eval_split="train[:40]", check_padding=True))
    result = result_of(trained)
    assert (result["records"], result["proven"]) == (40, True)
    assert result["data"].endswith("split 'train'[0:40]")
    assert "over 40 of 40 records of" in heard(capsys)


def test_new_images_are_predicted_with_the_classes_of_the_training_and_not_evaluated(
    trained, digits, tmp_path
):
    new = shutil.copytree(digits[1], tmp_path / "new")

    def unnamed(manifest):
        names = ("new", *manifest.labels.names[1:])
        return replace(manifest, labels=replace(manifest.labels, names=names))

    update_manifest(open_storage(str(new)), str(new), unnamed)
    other = replace(trained, data_dir=str(new), eval_split="train[:40]", mode="predict")
    run(other)
    path = Path(trained.trainer.workdir, "predictions.jsonl")
    names = result_of(trained, "description.json")["labels"]["names"]
    lines = [*map(json.loads, path.read_text().splitlines())]
    assert {line["label"] for line in lines} == {-1, *range(2, 11)}  # the model has no class "new"
    for line in lines:
        assert line["class_name"] == names[line["class"] - 1]
        assert line.get("label_name") == (None if line["label"] == -1 else names[line["label"] - 1])
    refused = "'image/class/label' has the class 'new', which the model does not have"
    with pytest.raises(OptionError, match=refused):
        run(replace(other, mode="evaluate"))


def test_the_state_is_shown_with_its_dtypes_and_what_the_optimizer_does(trained, capsys):
    optimizer = replace(trained.optimizer, freeze=("convs/0/*",), rate_of=("head/*=0.5",))
    settings = replace(trained.trainer, workdir="unused", precision="bf16_params", ema_decay=0.9)
    run(replace(trained, show_state=True, optimizer=optimizer, trainer=settings))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = {words[0]: words[1:] for words in lines if words}
    assert rows["variables/params/convs/0/kernel"][0] == "bfloat16"
    assert rows["variables/params/convs/0/kernel"][-1] == "frozen"
    assert rows["variables/params/head/kernel"][-3:] == ["x", "0.5", "0.05"]
    assert rows["variables/params/head/bias"][-2:] == ["x", "0.5"]
    assert rows["ema/head/kernel"][0] == "float32"
    assert not any(name.startswith("optimizer") and "convs/0" in name for name in rows)
    assert lines[-1][1:4] == ["parameters", "in", "6"]
    assert re.fullmatch(r".*; the state takes ([\d.]+ KB), \1 per device", " ".join(lines[-1]))
    assert not Path("unused").exists()
