"""The trainer's evaluation over real shards, also foreign ones: exact as it is, and refused when the reader lies."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from pipeline.commands import index
from pipeline.errors import EvaluationError
from pipeline.sources.indexed_records import IndexedReading
from trainer.commands.running import run
from trainer.config import TrainerConfig
from trainer.recipes.small_images import Digits
from trainer.trainer import Trainer


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    """(trainer, eval input_fn) after two steps: what is evaluated does not matter here, only what is counted."""
    sizes = {"global_batch_size": 16, "eval_batch_size": 100, "max_steps": 2}
    settings = TrainerConfig(workdir=str(tmp_path_factory.mktemp("model")), **sizes)
    recipe = Digits(data_dir=str(digits[1]), trainer=settings)
    trainer = Trainer(recipe.task(), settings, devices=jax.devices()[:1])
    trainer.train(recipe.train_input)
    return trainer, recipe.eval_input


def test_an_evaluation_over_shards_counts_every_record_and_proves_it(trained):
    trainer, eval_input = trained
    result = trainer.evaluate(eval_input)
    assert (result.records, result.num_records, result.proven) == (368, 368, True)
    assert result.crc == result.expected_crc


def test_a_reader_that_delivers_one_record_twice_and_skips_another_makes_it_fail(
    trained, monkeypatch
):
    trainer, eval_input = trained
    read = IndexedReading.__iter__

    def lying(self):
        for number, payloads in enumerate(read(self)):
            if number == 0:
                payloads[1] = payloads[0]
            yield payloads

    monkeypatch.setattr(IndexedReading, "__iter__", lying)
    with pytest.raises(EvaluationError, match=r"crcs add up to \w+ and not to the index's"):
        trainer.evaluate(eval_input)


def test_shards_that_were_only_indexed_are_proven_as_well(trained, digits, tmp_path):
    trainer, _ = trained
    for path in digits[1].glob("*-of-*"):
        shutil.copy(path, tmp_path / f"foreign_{path.name}.tfrecord")
    assert index.main([str(tmp_path)]) == 0
    settings = replace(trainer.config, same_classes=True)  # an index names no classes
    recipe = Digits(data_dir=str(tmp_path), trainer=settings, mode="evaluate")
    other = Trainer(recipe.task(), settings, devices=jax.devices()[:1])
    result = other.evaluate(recipe.eval_input)
    assert (result.records, result.num_records, result.proven) == (368, 368, True)
    assert result.metrics == trainer.evaluate(trained[1]).metrics


def test_the_recipe_writes_a_line_for_every_record_in_order_and_evaluates_what_has_come(
    trained, digits
):
    trainer, eval_input = trained
    for mode in ("evaluate-continuously", "predict"):
        run(Digits(data_dir=str(digits[1]), mode=mode, trainer=trainer.config))
    workdir = Path(trainer.config.workdir)
    lines = [json.loads(line) for line in (workdir / "predictions.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(368))
    assert {*lines[0]} == {"class", "index", "label", "probability"}
    accuracy = sum(line["class"] == line["label"] for line in lines) / 368
    assert json.loads((workdir / "eval_result.json").read_text())["accuracy"] == accuracy
    assert accuracy == trainer.evaluate(eval_input).metrics["accuracy"]
