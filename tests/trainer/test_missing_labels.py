"""Rows without a label have no part in loss and metrics, on any devices and microbatches; labels outside are errors.

Expected values are computed in NumPy from the labelled rows alone."""

import itertools
import json
import logging
from contextlib import ExitStack
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import EvaluationError, InputError, NanError
from trainer.augment import cutmix, mixup, one_hot
from trainer.checkpointing.manager import CheckpointManager
from trainer.config import TrainerConfig
from trainer.loop.evaluate import compare_paddings
from trainer.loop.evaluation import Evaluation
from trainer.loop.job import Job
from trainer.loop.session import open_session
from trainer.loop.train_loop import training_step
from trainer.mesh.placement import Placement
from trainer.metrics.binary import AUC
from trainer.metrics.classes import Accuracy, ConfusionMatrix, PerClass
from trainer.metrics.means import Regression
from trainer.task import Target, Task, Variables
from trainer.trainer import Trainer

RECORDS, BATCH, WIDTH, CLASSES, RATE = 40, 16, 4, 3, 0.5
NAN = float("nan")
START = np.linspace(-1, 1, WIDTH * CLASSES, dtype=np.float32).reshape(WIDTH, CLASSES)


def records(count=RECORDS):
    """Features, a class and a number of each record."""
    rng = np.random.default_rng(5)
    return {
        "x": rng.standard_normal((count, WIDTH)).astype(np.float32),
        "label": rng.integers(0, CLASSES, count).astype(np.int32),
        "number": rng.standard_normal(count).astype(np.float32),
    }


def linear_task(kind, **changes):
    """A linear model of the class or of the number; `extra` counts the rows that batch statistics would see."""

    def loss_fn(variables, batch, rng, train):
        outputs = batch["x"] @ variables.params["w"]
        after = Variables(variables.params, {"seen": jnp.sum(batch["_mask"])})
        if kind == "label":
            losses = optax.softmax_cross_entropy_with_integer_labels(outputs, batch["label"])
            return losses, (after if train else variables), outputs
        errors = outputs[:, 0] - batch["number"]
        return errors**2 / 2, (after if train else variables), outputs[:, 0]

    def predict(variables, batch):
        outputs = batch["x"] @ variables.params["w"]
        return {"class": jnp.argmax(outputs, -1), "label": batch["label"]}

    def init(rng, spec):
        return Variables({"w": jnp.asarray(START)}, {"seen": jnp.float32(0)})

    if kind == "label":
        metrics = {"accuracy": Accuracy("label"), "confusion": ConfusionMatrix("label")}
        target = Target("label", CLASSES)
    else:
        metrics, target = {"regression": Regression("number")}, Target("number")
    task = Task(init, loss_fn, optax.sgd(RATE), metrics, predict_fn=predict, target=target)
    return replace(task, **changes)


def losses_and_gradient(kind, rows, w):
    """Of these rows, in float64: the loss of each, and the gradient of their mean."""
    x, outputs = rows["x"].astype(np.float64), rows["x"].astype(np.float64) @ w
    if kind == "label":
        shares = np.exp(outputs - outputs.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        losses = -np.log(shares[np.arange(len(x)), rows["label"]])
        errors = shares - np.eye(CLASSES)[rows["label"]]
    else:
        errors = np.zeros_like(outputs)
        errors[:, 0] = outputs[:, 0] - rows["number"]
        losses = errors[:, 0] ** 2 / 2
    return losses, x.T @ errors / max(1, len(x))


def those(data, rows):
    return {key: values[rows] for key, values in data.items()}


def hide(data, hidden):
    """Takes the labels of these records away."""
    data["label"][hidden], data["number"][hidden] = -1, NAN


class Steps:
    """Ten steps of training with one program, from the same start each time."""

    def __init__(self, kind, devices, accumulate, apart, make_input):
        self.data = records()
        config = TrainerConfig(workdir="unused", global_batch_size=BATCH, accumulate=accumulate)
        task = linear_task(kind, independent_rows=apart)
        if apart:  # it may not change `extra`

            def loss_fn(variables, *rest):
                losses, _, outputs = linear_task(kind).loss_fn(variables, *rest)
                return losses, variables, outputs

            task = replace(task, loss_fn=loss_fn)
        self.job = Job(task, config, Placement.of(jax.devices()[:devices]))
        self.opened = self.job.open("train", lambda ctx: make_input(self.data, ctx))
        self.program = self.job.program(training_step(self.job), (), self._state(), self.opened)
        self.program.compile({1})

    def _state(self):
        return self.job.fresh_state(self.opened)

    def run(self):
        """The records of each step, its scalars, and the state at the end."""
        state, ids, scalars = self._state(), [], []
        for batch in itertools.islice(self.opened.source.batches(0), 10):
            ids.append(batch["_index"])
            state, returned = self.program(state, (self.program.place(batch, False),), False)
            scalars.append(self.program.read(returned, False)[0])
        return ids, scalars, state


LAYOUTS = {
    "one device": (1, 1, False),
    "four devices": (4, 1, False),
    "microbatches": (1, 4, False),
    "microbatches on devices": (4, 2, False),
    "microbatches apart": (4, 2, True),
}


@pytest.fixture(scope="module")
def steps_of(make_input):
    return cache(lambda kind, layout: Steps(kind, *LAYOUTS[layout], make_input))


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("label", "one device"),
        *(pytest.param("label", layout, marks=pytest.mark.slow) for layout in [*LAYOUTS][1:]),
        pytest.param("number", "one device", marks=pytest.mark.slow),
        pytest.param("number", "microbatches apart", marks=pytest.mark.slow),
    ],
)
@given(st.sets(st.integers(0, RECORDS - 1)))
@settings(max_examples=8, deadline=None)
def test_ten_steps_are_those_of_numpy_over_the_labelled_rows(steps_of, kind, layout, hidden):
    steps, truth = steps_of(kind, layout), records()
    steps.data |= {key: values.copy() for key, values in truth.items()}
    steps.opened.source.arrays.update(steps.data)
    hide(steps.data, list(hidden))
    ids, scalars, state = steps.run()
    w = START.astype(np.float64)
    for of_step, seen in zip(ids, scalars, strict=True):
        kept = [number for number in of_step if number not in hidden]
        losses, gradient = losses_and_gradient(kind, those(truth, kept), w)
        assert seen["_unlabelled"][0] == BATCH - len(kept)
        mean = losses.sum() / max(1, len(kept))
        np.testing.assert_allclose(seen["loss"][0], mean, rtol=2e-5, atol=1e-6)
        w = w - RATE * gradient
    np.testing.assert_allclose(np.asarray(state.variables.params["w"]), w, rtol=2e-5, atol=2e-6)


@pytest.mark.slow
def test_a_batch_without_any_label_changes_no_parameter_though_its_features_are_seen(steps_of):
    layouts = {"label": ("one device", "microbatches on devices"), "number": ("one device",)}
    for kind, layout in ((kind, layout) for kind, each in layouts.items() for layout in each):
        steps = steps_of(kind, layout)
        hide(steps.data, slice(None))
        steps.opened.source.arrays.update(steps.data)
        _, scalars, state = steps.run()
        assert np.array_equal(np.asarray(state.variables.params["w"]), START)
        for name in ("loss", "grad_norm"):
            assert {float(each[name][0]) for each in scalars} == {0.0}
        assert float(state.variables.extra["seen"]) == BATCH / LAYOUTS[layout][1]


class Epochs:
    """Evaluations of the first parameters with one program."""

    def __init__(self, stack, task, data, make_input, devices=1):
        self.data = data
        config = TrainerConfig(workdir="unused", global_batch_size=BATCH, iterations_per_loop=2)
        job = Job(task, config, Placement.of(jax.devices()[:devices]))
        session = stack.enter_context(open_session(job))
        opened = job.open("eval", lambda ctx: make_input(data, ctx))
        self.evaluation = Evaluation(session, opened, job.fresh_state(opened), 0)


@pytest.fixture(scope="module")
def module_stack():
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def epochs_of(module_stack, make_input):
    @cache
    def epochs(kind, devices):
        return Epochs(module_stack, linear_task(kind), records(), make_input, devices)

    return epochs


@pytest.fixture
def evaluated(make_input):
    """evaluated(task, data): the result of one epoch."""
    with ExitStack() as stack:
        yield lambda task, data: Epochs(stack, task, data, make_input).evaluation.epoch()


@pytest.mark.parametrize(("kind", "devices"), [("label", 4), ("number", 1)])
@given(st.sets(st.integers(0, RECORDS - 1), max_size=RECORDS - 1))
@settings(max_examples=8, deadline=None)
def test_metrics_are_those_of_numpy_over_the_labelled_records(epochs_of, kind, devices, hidden):
    epochs, truth = epochs_of(kind, devices), records()
    for key, values in truth.items():
        epochs.data[key][:] = values
    hide(epochs.data, list(hidden))
    result = epochs.evaluation.epoch()
    rows = those(truth, [number for number in range(RECORDS) if number not in hidden])
    assert (result.records, result.proven) == (RECORDS, True)
    assert result.labelled == RECORDS - len(hidden)
    losses, _ = losses_and_gradient(kind, rows, START)
    outputs = rows["x"].astype(np.float64) @ START
    np.testing.assert_allclose(result.metrics["loss"], losses.mean(), rtol=1e-5)
    if kind == "label":
        assert result.metrics["accuracy"] == np.mean(outputs.argmax(1) == rows["label"])
        expected = np.zeros((CLASSES, CLASSES), int)
        np.add.at(expected, (rows["label"], outputs.argmax(1)), 1)
        assert np.array_equal(result.arrays["confusion"], expected)
    else:
        rmse = np.sqrt(np.mean((outputs[:, 0] - rows["number"]) ** 2))
        np.testing.assert_allclose(result.metrics["regression/rmse"], rmse, rtol=1e-5)


def mean_loss(kind, rows):
    return pytest.approx(losses_and_gradient(kind, rows, START)[0].mean(), rel=1e-5)


def test_a_nan_is_a_missing_number_and_minus_one_is_not(evaluated):
    data = records()
    data["number"][:3] = -1, NAN, 5
    result = evaluated(linear_task("number"), data)
    assert (result.labelled, result.not_finite) == (RECORDS - 1, {})
    rows = those(data, [0, *range(2, RECORDS)])
    assert result.metrics["loss"] == mean_loss("number", rows)


def test_labels_may_be_integers_of_any_size_and_minus_one_if_it_is_a_class(evaluated):
    data, task = records(), linear_task("label")

    def shifted(variables, batch, *rest):
        return task.loss_fn(variables, {**batch, "label": batch["label"] + 1}, *rest)

    from_minus_one = {"target": Target("label", CLASSES, base=-1), "metrics": {}}
    for tried, labels in (
        (task, data["label"].astype(np.uint8)),
        (replace(task, loss_fn=shifted, **from_minus_one), data["label"] - 1),
    ):
        result = evaluated(tried, {**data, "label": labels})
        assert result.labelled == RECORDS
        assert result.metrics["loss"] == mean_loss("label", data)


def test_padding_changes_no_bit_of_metrics_over_labelled_records(epochs_of):
    for kind, devices in (("label", 4), ("number", 1)):
        epochs = epochs_of(kind, devices)
        hide(epochs.data, [0, 17, RECORDS - 1])
        compare_paddings(epochs.evaluation, epochs.evaluation.epoch())


@pytest.mark.slow
def test_a_metric_that_is_not_finite_is_explained(evaluated, caplog, tmp_path):
    data = records()
    data["number"][4:7] = NAN
    with caplog.at_level(logging.WARNING):
        result = evaluated(linear_task("number", target=None), data)
    # their sums of squares
    why = "undefined for these 40 records, or beyond float32"
    metrics = {name: why for name in result.metrics if name.startswith("regression/")}
    assert result.not_finite == {"loss": "not finite for 3 of 40 records", **metrics}
    assert result.labelled == RECORDS
    assert "loss is not finite for 3 of 40 records" in caplog.text
    assert f"; regression/r2 is {why}" in str(result)
    result.write(str(tmp_path))
    written = json.loads((tmp_path / "eval_result.json").read_text())
    assert written["not_finite"] == result.not_finite
    data["number"][:] = 1e19
    expected = {"loss": "not finite for the sum of 40 records", **metrics}
    assert evaluated(linear_task("number"), data).not_finite == expected
    data["number"][:] = 1
    undefined = evaluated(linear_task("number"), data).not_finite
    assert undefined.keys() == {"regression/r2", "regression/correlation"}


def measured(**metrics):
    """A task without a target, so that only its metrics know the classes."""
    return linear_task("label", target=None, metrics=metrics)


AREA = AUC("label", lambda outputs, _: outputs[:, 0])
OUTSIDE = {
    "a target": (linear_task("label", metrics={}), 7, r"label 'label' outside of 0\.\.2"),
    "minus two": (linear_task("label", metrics={}), -2, r"label 'label' outside of 0\.\.2"),
    "accuracy": (measured(right=Accuracy("label")), -1, r"outside of 0\.\.2 in the metric 'right'"),
    "per class": (measured(each=PerClass("label")), 7, r"outside of 0\.\.2 in the metric 'each'"),
    "area": (measured(area=AREA), 2, r"of 0\.\.1 in the metric 'area'"),
}


def with_labels(*wrong):
    """Records of the classes 0 and 1, but for numbers 11 and 30."""
    data = records()
    data["label"] %= 2
    data["label"][[11, 30]] = wrong
    return data


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_evaluation_names_labels_outside_of_the_classes(evaluated, name):
    task, label, text = OUTSIDE[name]
    with pytest.raises(EvaluationError, match=rf"counted 2 records .*{text}, such as record 30"):
        evaluated(task, with_labels(label, label))
    assert evaluated(task, with_labels(1, 0)).records == RECORDS


@pytest.mark.parametrize(
    ("name", "on_nan", "accumulate"),
    [
        ("a target", "raise", 1),
        pytest.param("a target", "ignore", 2, marks=pytest.mark.slow),
        ("accuracy", "skip", 1),
        pytest.param("area", "raise", 2, marks=pytest.mark.slow),
    ],
)
def test_a_training_ends_before_it_saves_what_it_learned_from_such_a_label(
    make_input, config, name, on_nan, accumulate
):
    task, label, text = OUTSIDE[name]
    sources = []

    def input_fn(ctx):
        sources.append(make_input(with_labels(0, label), ctx))
        return sources[-1]

    settings = {"on_nan": on_nan, "accumulate": accumulate, "iterations_per_loop": 2}
    settings = config(checkpoint_every_steps=1, **settings)
    with pytest.raises(InputError, match=rf"step \d has 1 record .*{text}\. No checkpoint"):
        Trainer(task, settings).train(input_fn, max_steps=6)
    first = next(step for step, ids in enumerate(sources[0].given, 1) if 30 in ids)
    assert CheckpointManager(settings).steps() == list(range(1, first))


@pytest.mark.slow
def test_a_split_without_labels_is_predicted_but_not_evaluated(make_input, config):
    data, stored = records(), records()
    hide(data, slice(None))
    trainer = Trainer(linear_task("label"), config())
    trainer.train(lambda ctx: make_input(stored, ctx), max_steps=1)
    none = "none of the 40 records has the label 'label', .* --mode predict"
    with pytest.raises(EvaluationError, match=none):
        trainer.evaluate(lambda ctx: make_input(data, ctx))
    predictions = list(trainer.predict(lambda ctx: make_input(data, ctx)))
    assert [int(each["label"]) for each in predictions] == [-1] * RECORDS


def test_records_without_a_label_are_not_among_those_of_an_evaluation(make_input, config):
    data, collected = records(), []
    hide(data, [3, 20])
    trainer = Trainer(linear_task("label"), config())
    trainer.train(lambda ctx: make_input(data, ctx), max_steps=1)
    trainer.evaluate(lambda ctx: make_input(data, ctx), on_records=collected.append)
    index = np.concatenate([each.index for each in collected])
    assert index.tolist() == [number for number in range(RECORDS) if number not in (3, 20)]
    assert min(each.predictions["label"].min() for each in collected) == 0


def test_a_training_tells_once_that_labels_are_missing_and_at_its_end_how_many(
    make_input, config, caplog
):
    data = records()
    hide(data, slice(0, RECORDS, 2))
    sources = []

    def input_fn(ctx):
        sources.append(make_input(data, ctx))
        return sources[-1]

    with caplog.at_level(logging.WARNING):
        Trainer(linear_task("label"), config(iterations_per_loop=2)).train(input_fn, max_steps=6)
    first, total = [record.message for record in caplog.records if "no label" in record.message]
    missing = [int(np.sum(ids % 2 == 0)) for ids in sources[0].given[:6]]
    assert f"{sum(missing[:2])} rows up to step 2 had no label" in first
    assert f"{sum(missing)} rows had no label" in total


@pytest.mark.slow
@pytest.mark.parametrize("mix", [mixup, cutmix], ids=["mixup", "cutmix"])
def test_a_mix_with_a_record_without_a_label_ends_the_step(make_input, config, mix):
    data = {**records(), "image": np.zeros((RECORDS, 4, 4, 1), np.float32)}

    def loss_fn(variables, batch, rng, train):
        outputs = batch["x"] @ variables.params["w"]
        soft = batch.get("labels", jax.nn.one_hot(batch["label"], CLASSES))
        return optax.softmax_cross_entropy(outputs, soft), variables, outputs

    def mixed(batch):
        return mix(one_hot(batch, "label", CLASSES))

    task = linear_task("label", loss_fn=loss_fn, augment=mixed)
    Trainer(task, config("labelled")).train(lambda ctx: make_input(data, ctx), max_steps=2)
    smooth = replace(task, augment=lambda batch: one_hot(batch, "label", CLASSES, smoothing=0.1))
    hide(data, [5])
    Trainer(smooth, config("smooth")).train(lambda ctx: make_input(data, ctx), max_steps=2)
    with pytest.raises(NanError, match="the loss is nan"):
        Trainer(task, config("hidden")).train(lambda ctx: make_input(data, ctx), max_steps=6)


def test_a_target_must_be_in_the_batch_and_integers_if_it_is_a_class(evaluated):
    with pytest.raises(InputError, match="the batch has no 'lable'. Did you mean 'label'"):
        evaluated(linear_task("label", target=Target("lable", 3)), records())
    with pytest.raises(InputError, match="the labels are float32; expected integers"):
        evaluated(linear_task("label", target=Target("number", 3)), records())
