"""A replay of a recipe's steps from the command line: a wrong label in the data is found by the loss of its record."""

import json
import re
import shutil
import sys

import pytest
from sklearn.datasets import load_digits
from stages import Stages

from beam_jobs import graph
from converters import digits_raw, imagenet_to_gcs
from trainer import seen
from trainer.command.loading import parsed, recipe_class
from trainer.command.running import run
from trainer.history.segments import Command

RECIPE = """
import jax.numpy as jnp
import optax
from dataclasses import dataclass
from pathlib import Path
from trainer.recipe import DataRecipe, TrainerConfig, batch_options, settings
from trainer.task import Task, Variables

IMAGE, LABEL = "image", "image/class/label"

@dataclass(frozen=True, kw_only=True)
class Config(DataRecipe):
    rate: float = 0.01
    trainer: TrainerConfig = settings(checkpoint_every_steps=40, iterations_per_loop=20)

    def task(self):
        def loss_fn(variables, batch, rng, train):
            x = batch[IMAGE].reshape(len(batch[IMAGE]), -1) / 255 - 0.5
            logits = x @ variables.params
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch[LABEL] - 1), variables, logits
        return Task(lambda rng, spec: Variables(jnp.zeros((1024, 10))), loss_fn, optax.adam(self.rate))

    def train_input(self, ctx):
        from pipeline.datasets import train_dataset
        from pipeline.ops import DecodeJpeg
        if ctx.start_step == 0:  # as recipes do that write the names of their classes
            Path(self.trainer.workdir, "began").touch()
        ops = [DecodeJpeg("image/encoded", into=IMAGE, shape=(32, 32, 1))]
        return train_dataset(self.train_records, ops=ops, keys=(IMAGE, LABEL), seed=ctx.seed, **batch_options(ctx))

    def eval_input(self, ctx):
        raise NotImplementedError
"""


WRONG = 358  # the row of a digit of sklearn's, which is in the training split


@pytest.fixture(scope="module")
def mislabelled(tmp_path_factory):
    """A directory with a recipe, and its run of 80 steps on digits; one digit has a wrong label."""
    directory, found = tmp_path_factory.mktemp("mislabelled"), load_digits()
    (directory / "linear_digits.py").write_text(RECIPE)
    found.target[WRONG] = (found.target[WRONG] + 5) % 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sklearn.datasets.load_digits", lambda: found)
        patch.setattr(graph, "pipeline_of", Stages)
        patch.chdir(directory)
        patch.syspath_prepend(directory)
        digits_raw.write_raw(directory / "raw")
        imagenet_to_gcs.main(["--raw-data-dir=raw", "--label-file=raw/synsets.txt", "--output=shards"])
        options = ["--data-dir=shards", "--workdir=model", "--max-steps=80", "--mode=train"]
        with pytest.raises(NotImplementedError):  # of the evaluation that follows
            run(recipe_of("linear_digits", options), Command("linear_digits", options, str(directory)))
    return directory


def recipe_of(name, options):
    return parsed(recipe_class(name), options, "program")[0]


def lines_of(capsys, *arguments):
    seen.main([*map(str, arguments), "--jsonl"])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def there(mislabelled, monkeypatch):
    """The directory, in another current one: a replay changes to where the run was started."""
    monkeypatch.chdir(mislabelled.parent)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return mislabelled


def test_the_record_with_the_wrong_label_comes_first_in_its_step(there, capsys):
    model = there / "model"
    steps = lines_of(capsys, model, "--step=41", "--to=80")
    step = next(line["step"] for line in steps if line["key"].endswith(f"_{WRONG}.JPEG"))
    worst, *others = lines_of(capsys, model, f"--step={step}", "--losses", "--run-recipe")
    assert worst["key"].endswith(f"_{WRONG}.JPEG")
    assert all(worst["loss"] > other["loss"] for other in others)
    assert sorted(line["index"] for line in [worst, *others]) == sorted(
        line["index"] for line in steps if line["step"] == step
    )
    seen.main([str(model), f"--step={step}", "--losses", "--run-recipe", "--rows=4"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "64 records; the 4 with the largest losses: loss row index " in printed
    assert "replayed: mean loss " in printed
    assert printed.endswith(", bit-identical to metrics.jsonl")


def test_seen_still_names_the_records_if_the_checkpoint_is_gone(there, tmp_path, capsys):
    model = shutil.copytree(there / "model", tmp_path / "model")
    for step in (40, 80):
        shutil.rmtree(model / "checkpoints" / str(step))
    lines = lines_of(capsys, model, "--step=70")
    seen.main([str(model), "--step=70", "--losses", "--run-recipe", "--jsonl"])
    printed = capsys.readouterr()
    assert [json.loads(line) for line in printed.out.splitlines()] == lines
    assert "warning: step 70 cannot be replayed: no checkpoint of its run is left between its start" in printed.err


def test_paths_are_relative_to_the_current_directory_not_to_that_of_the_run(there, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(there / "model")
    seen.main(["model", "--step=45", "--losses", "--run-recipe", "--html=step.html"])
    assert capsys.readouterr().out.startswith("step.html: ")
    assert ", bit-identical to metrics.jsonl." in (tmp_path / "step.html").read_text()
    assert not (there / "step.html").exists()


def test_data_that_were_moved_are_replayed_from_data_dir(there, tmp_path, monkeypatch, capsys):
    shutil.move(there / "shards", tmp_path / "elsewhere")
    try:
        monkeypatch.chdir(tmp_path)
        lines = lines_of(capsys, there / "model", "--step=3", "--losses", "--run-recipe", "--data-dir=elsewhere")
    finally:
        shutil.move(tmp_path / "elsewhere", there / "shards")
    assert {line["directory"] for line in lines} == {str(tmp_path / "elsewhere")}
    assert all(line["loss"] > 0 for line in lines)


@pytest.fixture
def warned(there, tmp_path, capsys, caplog):
    """warned(**changes of the start) -> what a replay of step 3 warns of; the records are listed all the same."""

    def replay(directory=None, options=(), **changes):
        model = shutil.copytree(there / "model", tmp_path / "model")
        start, *rest = (model / "segments.jsonl").read_text().splitlines()
        page = json.loads(start) | changes
        del page["checksum"]  # as a version before the checksums wrote it
        page["command"]["options"] += options
        page["command"]["directory"] = directory or page["command"]["directory"]
        (model / "segments.jsonl").write_text("\n".join([json.dumps(page), *rest]))
        (model / "began").unlink()
        seen.main([str(model), "--step=3", "--losses", "--run-recipe", "--jsonl"])
        printed = capsys.readouterr()
        assert not (model / "began").exists()
        assert len(printed.out.splitlines()) == 64
        assert ("loss" in json.loads(printed.out.splitlines()[0])) == ("the losses are not known" not in printed.err)
        return printed.err + caplog.text

    return replay


def test_a_recipe_that_is_not_there_is_named(warned):
    assert "run was started in /nowhere, which does not exist here, so its recipe linear_digits cannot be loaded" in (
        warned(directory="/nowhere")
    )


def test_a_replay_that_reads_other_records_gives_no_losses(warned):
    assert "a replay of step 3 reads other records than the run did" in warned(options=["--global-batch-size=32"])


def test_a_replay_of_other_data_gives_no_losses(warned, digits):
    assert re.search("the data have the fingerprint .*; the run read ", warned(options=[f"--data-dir={digits[1]}"]))


def test_other_versions_are_named(warned):
    told = warned(versions={"numpy": "2.3", "python": "3"})
    assert "the run used other versions, so the replay may differ: python '3' -> '3." in told
