"""Exports in the middle of training, of what was just evaluated."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.errors import ExportError, OptionError, StorageError
from trainer.callbacks import Callback, Exporter
from trainer.loop.evaluation_end import measured
from trainer.serving.publishing import Exports
from trainer.trainer import Trainer

pytestmark = pytest.mark.usefixtures("in_this_process")


@pytest.fixture
def train(dense_task, vector_input, config):
    """train(max_steps, callbacks) evaluates every second step; the state in the end."""

    def predict(variables, batch):
        scores = jnp.tanh(batch["x"] @ variables.params["a"]) @ variables.params["b"]
        return {"scores": scores, "by_rows": scores + batch["x"].shape[0]}

    def run(max_steps, callbacks=(), name="run"):
        metrics = {**dense_task.metrics, "cost": lambda outputs, batch: batch["_losses"]}
        trainer = Trainer(
            replace(dense_task, predict_fn=predict, metrics=metrics),
            config(name, iterations_per_loop=2),
            callbacks=callbacks,
        )
        return trainer.train_and_evaluate(
            vector_input, vector_input, max_steps=max_steps, eval_every_steps=2
        )

    return run


def steps_of(path, tmp_path):
    exports = Exports(str(tmp_path / path))
    return [exports.origin(number)["step"] for number in exports.numbers()]


@pytest.mark.slow
def test_latest_and_final_export_during_and_after_a_training_that_they_do_not_change(
    train, vector_input, tmp_path
):
    latest = Exporter(str(tmp_path / "latest"), vector_input, keep=1, keys=["scores"])
    final = Exporter(str(tmp_path / "final"), vector_input, when="final", keys=["scores"])
    seen, plain = train(4, [latest, final]).state, train(4, name="plain").state
    for mine, theirs in zip(jax.tree.leaves(seen), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert steps_of("latest", tmp_path) == [4]
    assert steps_of("final", tmp_path) == [4]


@pytest.mark.slow
def test_a_model_is_exported_after_its_checkpoint_is_reported_complete(
    train, vector_input, tmp_path
):
    class Complete(Callback):
        exported = ()

        def on_checkpoint_complete(self, end):
            self.exported += ((end.step, steps_of("latest", tmp_path)),)

    complete = Complete()
    train(4, [Exporter(str(tmp_path / "latest"), vector_input, keys=["scores"]), complete])
    assert complete.exported == ((2, []), (4, [2]))


@pytest.mark.parametrize(
    "text", ["", '{"origin": 1}', '{"origin": {"metrics": {"loss": []}}}', '"\xff"']
)
def test_best_export_refuses_to_compare_with_a_damaged_export(tmp_path, text):
    extra = tmp_path / "7/assets.extra"
    extra.mkdir(parents=True)
    (tmp_path / "7/saved_model.pb").touch()
    (extra / "infeed.json").write_bytes(text.encode("latin1"))
    with pytest.raises(ExportError, match=r"7/assets\.extra/infeed\.json is damaged"):
        measured(str(tmp_path), "loss")


@pytest.mark.slow
def test_best_exports_only_what_is_better_than_the_newest_export_also_after_a_restart(
    train, vector_input, tmp_path
):
    best = Exporter(str(tmp_path / "best"), vector_input, when="best", keys=["scores"])
    losses = [each.metrics["loss"] for each in train(4, [best]).evaluations]
    assert losses[1] < losses[0]
    assert steps_of("best", tmp_path) == [2, 4]
    others = {"when": "best", "metric": "cost", "keys": ["scores"]}
    worse = Exporter(str(tmp_path / "best"), vector_input, better="max", **others)
    losses = [losses[1], *(each.metrics["loss"] for each in train(6, [worse]).evaluations)]
    assert losses[-1] < losses[0]
    assert steps_of("best", tmp_path) == [2, 4]


@pytest.mark.slow
def test_an_exporter_ignores_evaluations_of_another_name(train, vector_input, tmp_path):
    train(2, [Exporter(str(tmp_path / "other"), vector_input, name="other")])
    assert not Path(tmp_path / "other").exists()


def test_a_training_that_will_export_needs_tensorflow_at_its_start(
    train, vector_input, tmp_path, monkeypatch
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        OptionError,
        match=r"exports need TensorFlow, which is not installed. Install it: pip install",
    ):
        train(2, [Exporter(str(tmp_path / "exports"), vector_input)])
    assert not (tmp_path / "exports").exists()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"assets_extra": {"vocab.txt": "missing"}}, StorageError, "cannot find missing"),
        ({"when": "newest"}, OptionError, "when='newest' is not one of best, latest, final"),
        ({"when": "best", "better": "lower"}, OptionError, "better='lower' is not one of min, max, None"),
        ({"keep": 0}, OptionError, "keep=0 must be"),
        ({"when": "best", "metric": "los"}, OptionError, "metric='los' is not a number .* Did you mean 'loss'"),
        ({"when": "best", "better": "max"}, OptionError, "better='max' contradicts 'loss'"),
        ({"when": "best", "metric": "cost"}, OptionError, "metric='cost' needs better, 'max' or 'min'"),
    ],
)  # fmt: skip
def test_wrong_options_are_one_error(train, vector_input, tmp_path, options, error, text):
    with pytest.raises(error, match=text):
        train(2, [Exporter(str(tmp_path / "there"), vector_input, **options)])


@pytest.mark.slow
def test_training_continues_if_a_callback_catches_a_failed_export(train, vector_input, tmp_path):
    class Forgiving(Exporter):
        def on_evaluation_end(self, end):
            with pytest.raises(ExportError, match="they differ by"):
                super().on_evaluation_end(end)

    failing = Forgiving(str(tmp_path / "exports"), vector_input, keys=["by_rows"])
    assert train(4, [failing]).step == 4
    assert steps_of("exports", tmp_path) == []
