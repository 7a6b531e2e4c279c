"""Recipes on data with missing labels: a table by command, and images of which some records lack one."""

import csv
import json
import re
from dataclasses import dataclass

import numpy as np
import pytest
from pictures import encoded
from PIL import Image
from stages import without_beam

from converters import table_to_gcs
from pipeline.errors import SchemaError
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.sources.in_memory import ExampleRecords
from trainer.__main__ import main
from trainer.commands.running import run
from trainer.config import TrainerConfig
from trainer.recipes import images

LABEL, RECORDS = "image/class/label", 40


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """A table whose city follows from the area; every fourth row has none, and none of "test"."""
    directory = tmp_path_factory.mktemp("table")
    (directory / "raw").mkdir()
    rng = np.random.default_rng(0)
    for split, rows in (("train", 200), ("validation", 80), ("test", 30)):
        with (directory / "raw" / f"{split}.csv").open("w") as file:
            writer = csv.writer(file)
            writer.writerow(["area", "city"])
            for number, area in enumerate(rng.normal(size=rows).round(3).tolist()):
                known = number % 4 and split != "test"
                writer.writerow([area, ["Rome", "Oslo"][area > 0] if known else ""])
    with without_beam():
        table_to_gcs.main([f"--raw-data-dir={directory}/raw", f"--output={directory}/shards"])
    return directory / "shards"


@pytest.fixture
def commanded(shards, tmp_path, capfd):
    """commanded(flag, ...): the exit code of the command, and what it prints."""

    def run(*flags):
        options = f"tabular --data-dir={shards} --workdir={tmp_path} --columns=area --target=city"
        options += " --max-steps=200 --iterations-per-loop=20"
        code = main([*options.split(), *flags])
        return code, " ".join("".join(capfd.readouterr()).split())

    return run


@pytest.mark.slow
def test_a_table_with_missing_classes_is_learned_evaluated_and_predicted(
    commanded, tmp_path, caplog
):
    code, printed = commanded()
    assert code == 0, printed
    result = json.loads((tmp_path / "eval_result.json").read_bytes())
    counted = [result[name] for name in ("records", "labelled", "num_records", "proven")]
    assert counted == [80, 60, 80, True]
    assert result["accuracy"] > 0.9
    assert f"accuracy {result['accuracy']:.2%}, loss" in printed
    assert "over 60 labelled of 80 records of" in printed
    assert "20 of 80 records have no label; the metrics are over the other 60" in caplog.text
    assert caplog.text.count("rows had no label, and no part in the loss") == 1

    code, printed = commanded("--mode=predict")
    assert code == 0, printed
    lines = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    right = sum(line["label"] == line["class"] for line in lines)
    assert [line["label"] for line in lines].count(-1) == 20
    assert right == round(result["accuracy"] * 60)
    assert f"80 predictions written to {tmp_path}/predictions.jsonl" in printed

    new = "--eval-split=test"
    code, printed = commanded(new, "--mode=evaluate")
    assert code != 0
    named = r"shards, split 'test': none of the 30 records has the label 'city', so nothing .*--mode predict"
    assert re.search(named, printed), printed
    code, printed = commanded(new, "--mode=predict")
    assert code == 0, printed
    assert f"30 predictions written to {tmp_path}/predictions.jsonl" in printed


@dataclass(frozen=True, kw_only=True)
class Pictures(images.Config):
    """Pictures whose brightness is their class; `labels`: of the records, over and over."""

    labels: tuple[int, ...] = (0, 1)

    def tiny_records(self, split):
        image = Feature("bytes", content="image", channels=3)
        schema = Schema("tiny", {"image/encoded": image, LABEL: Feature("int64")})
        examples = map(self._example, range(RECORDS))
        names = Labels(LABEL, 0, ("dark", "light"))
        return ExampleRecords(f"pictures of {split}", schema, examples, names)

    def _example(self, number):
        grey = Image.fromarray(np.full((16, 16, 3), 40 + 150 * (number % 2), np.uint8))
        return {"image/encoded": encoded(grey), LABEL: self.labels[number % len(self.labels)]}


@pytest.fixture
def pictures(tmp_path):
    def made(**fields):
        trainer = TrainerConfig(
            workdir=str(tmp_path / "run"), global_batch_size=16, eval_batch_size=16, max_steps=20
        )
        narrow = {"tiny": True, "size": 8, "widths": (4,), "augmentation": "none"}
        return Pictures(trainer=trainer, **narrow, **fields)

    return made


def test_images_without_a_label_have_no_part_in_metrics_nor_in_the_page(pictures, tmp_path, capsys):
    run(pictures(labels=(0, 1, -1, -1), label_smoothing=0.1, report=str(tmp_path / "page.html")))
    result = json.loads((tmp_path / "run" / "eval_result.json").read_text())
    counted = [result[name] for name in ("records", "labelled", "proven", "accuracy")]
    assert counted == [40, 20, True, 1.0]
    assert "accuracy 100.00%" in capsys.readouterr().out
    page = (tmp_path / "page.html").read_text()
    counted = "<strong>40 of 40</strong><span>records counted; 20 have a label</span><span>proven"
    assert counted in page
    assert page.count("<img ") == 20
    of_classes = page[page.index("Confusion matrix") : page.index("All metrics")]
    assert "-1" not in re.sub("<[^>]*>", "", of_classes)


@pytest.mark.parametrize("mix", [{"mixup": 0.2}, {"cutmix": 1.0}], ids=["mixup", "cutmix"])
def test_mixing_is_refused_with_the_name_of_the_record_without_a_label(pictures, mix):
    labels = tuple(-1 if number == 17 else number % 2 for number in range(RECORDS))
    with pytest.raises(SchemaError, match=r"17.*no label"):
        run(pictures(labels=labels, **mix))
