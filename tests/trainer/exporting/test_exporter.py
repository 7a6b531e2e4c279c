"""Exports in the middle of training, of what was just evaluated."""

from pathlib import Path

import jax
import numpy as np
import pytest

from pipeline.errors import ExportError, OptionError
from pipeline.ops import RandomFlip
from trainer.config import TrainerConfig
from trainer.exporter import Exporter
from trainer.exporting.publishing import Exports
from trainer.trainer import Trainer

pytestmark = pytest.mark.usefixtures("in_this_process")


@pytest.fixture
def train(photographs, tmp_path):
    """train(max_steps, callbacks) evaluates every second step; the state in the end."""

    def run(max_steps, callbacks=(), name="run"):
        config = TrainerConfig(workdir=str(tmp_path / name), global_batch_size=32, iterations_per_loop=2)
        trainer = Trainer(photographs.trainer._setup.task, config, callbacks=callbacks)
        inputs = photographs.input, photographs.input
        return trainer.train_and_evaluate(*inputs, max_steps=max_steps, eval_every_steps=2)

    return run


def steps_of(path, tmp_path):
    exports = Exports(str(tmp_path / path))
    return [exports.origin(number)["step"] for number in exports.numbers()]


def test_latest_and_final_export_during_and_after_a_training_that_they_do_not_change(photographs, train, tmp_path):
    latest = Exporter(str(tmp_path / "latest"), photographs.input, keep=1, keys=["logits"])
    final = Exporter(str(tmp_path / "final"), photographs.input, when="final", keys=["logits"])
    seen, plain = train(4, [latest, final]).state, train(4, name="plain").state
    for mine, theirs in zip(jax.tree.leaves(seen), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert steps_of("latest", tmp_path) == [4]
    assert steps_of("final", tmp_path) == [4]


def test_best_exports_only_what_is_better_than_the_newest_export_also_after_a_restart(photographs, train, tmp_path):
    best = Exporter(str(tmp_path / "best"), photographs.input, when="best", keys=["logits"])
    losses = [each.metrics["loss"] for each in train(4, [best]).evaluations]
    assert losses[1] < losses[0]
    assert steps_of("best", tmp_path) == [2, 4]
    worse = Exporter(str(tmp_path / "best"), photographs.input, when="best", better="max", keys=["logits"])
    losses = [losses[1], *(each.metrics["loss"] for each in train(6, [worse]).evaluations)]
    assert losses[-1] < losses[0]
    assert steps_of("best", tmp_path) == [2, 4]


def test_only_evaluations_of_its_name_count(photographs, train, tmp_path):
    train(2, [Exporter(str(tmp_path / "other"), photographs.input, name="other")])
    assert not Path(tmp_path / "other").exists()


def test_wrong_options_are_one_error(photographs, train, tmp_path):
    with pytest.raises(OptionError, match="when='newest' is not one of best, latest, final"):
        Exporter("there", photographs.input, when="newest")
    with pytest.raises(OptionError, match="better='lower' is not one of min, max"):
        Exporter("there", photographs.input, when="best", better="lower")
    with pytest.raises(OptionError, match="keep=0 must be"):
        Exporter("there", photographs.input, keep=0)
    with pytest.raises(OptionError, match="metric='los' is not a metric of the evaluation. Did you mean 'loss'"):
        train(2, [Exporter(str(tmp_path / "best"), photographs.input, when="best", metric="los")])


def test_a_callback_may_catch_an_export_that_fails_and_the_training_goes_on(photographs, train, tmp_path):
    class Forgiving(Exporter):
        def on_evaluation_end(self, end):
            with pytest.raises(ExportError, match="they differ by"):
                super().on_evaluation_end(end)

    def input_fn(ctx):
        return photographs.input(ctx, RandomFlip("image"))

    failing = Forgiving(str(tmp_path / "exports"), input_fn, keys=["logits"])
    assert train(4, [failing]).step == 4
    assert steps_of("exports", tmp_path) == []
