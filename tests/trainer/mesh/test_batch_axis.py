"""Arrays whose batch is not the first axis train, evaluate and predict as the same arrays with rows first."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from pipeline.errors import InputError, OptionError
from trainer.callbacks import Callback, Exporter
from trainer.commands.recorded import load
from trainer.config import TrainerConfig
from trainer.loop.job import Job
from trainer.loop.preflight import facts_of
from trainer.loop.train_loop import training_step
from trainer.mesh.batch_spec import BatchAxes
from trainer.mesh.placement import Placement
from trainer.task import Task, Variables
from trainer.trainer import Trainer

RECORDS, STEPS = 40, 8  # of an evaluation by 16, the last batch has 8 rows of padding
AXES = {"NHWC": {}, "HWCN": {"photo/pixels": 3}}
RUNS = {"scan": {"loop_mode": "scan"}, "step": {"loop_mode": "step", "accumulate": 2}}


def conv_task(layout):
    """A convolution over images in this layout; its means over an image are the logits [b, 3]."""

    def logits_of(variables, batch):
        made = lax.conv_general_dilated(
            batch["photo"]["pixels"],
            variables.params["w"],
            (1, 1),
            "SAME",
            dimension_numbers=(layout, "HWIO", "NHWC"),
        )
        return 4 * jnp.tanh(made).mean((1, 2))

    def init(rng, spec):
        channels = spec["photo"]["pixels"].shape[layout.index("C")]
        return Variables({"w": 0.3 * jax.random.normal(rng, (3, 3, channels, 3))})

    def loss_fn(variables, batch, rng, train):
        logits = logits_of(variables, batch)
        return (
            optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]),
            variables,
            logits,
        )

    def right(logits, batch):
        return logits.argmax(-1) == batch["label"]

    def predict(variables, batch):
        return {"logits": logits_of(variables, batch)}

    return Task(init, loss_fn, optax.sgd(0.5), {"right": right}, predict_fn=predict)


@pytest.fixture(scope="module")
def input_of(make_input):
    """input_of("HWCN"): an input of images in this layout, whose rows of padding are NaN."""
    rng = np.random.default_rng(0)
    pixels = rng.normal(size=(RECORDS, 6, 5, 2)).astype(np.float32)
    arrays = {"pixels": pixels, "label": rng.integers(0, 3, RECORDS).astype(np.int32)}

    class Turned(make_input):
        def _batch(self, step):
            batch = super()._batch(step)
            pixels = batch.pop("pixels")
            return batch | {"photo": {"pixels": np.moveaxis(pixels, 0, self.axis).copy()}}

    def made(layout):
        kind = type("Turned", (Turned,), {"axis": layout.index("N")})
        return lambda ctx: kind(arrays, ctx, pad={"pixels": np.nan})

    return made


class Losses(Callback):
    def __init__(self):
        self.of_steps = []

    def on_loop_end(self, end):
        self.of_steps += np.ravel(end.scalars["loss"]).tolist()


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """settings("HWCN"): of a training on images in this layout, in a new directory."""

    def made(layout, **others):
        sizes = {
            "global_batch_size": 8,
            "eval_batch_size": 16,
            "iterations_per_loop": 4,
            "checkpoint_every_steps": 4,
        }
        workdir = str(tmp_path_factory.mktemp("run"))
        return TrainerConfig(workdir=workdir, **{"batch_axis": AXES[layout]} | sizes | others)

    return made


@pytest.fixture(scope="module")
def ran(input_of, settings):
    """{(run, layout): (losses of the steps, evaluation, predictions, trainer)}."""

    def run(name, layout):
        losses, source = Losses(), input_of(layout)
        trainer = Trainer(conv_task(layout), settings(layout, **RUNS[name]), callbacks=[losses])
        trainer.train(source, max_steps=STEPS)
        evaluated = trainer.evaluate(source, check_padding=True)
        return losses.of_steps, evaluated, [*trainer.predict(source)], trainer

    return {(name, layout): run(name, layout) for name in RUNS for layout in AXES}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.slow
def test_both_layouts_train_to_the_same_losses(ran, name):
    expected, found = (ran[name, layout][0] for layout in AXES)
    assert len(expected) == STEPS
    assert expected[-1] < expected[0]
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", RUNS)
def test_an_epoch_with_padding_is_exact_and_the_padding_has_no_effect(ran, name):
    expected, found = (ran[name, layout][1] for layout in AXES)
    assert (found.records, found.proven) == (RECORDS, True)
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-6)


def test_predictions_are_single_records_in_order(ran):
    expected, found = (ran["scan", layout][2] for layout in AXES)
    assert [record["_index"] for record in found] == [*range(RECORDS)]
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine["logits"], theirs["logits"], rtol=1e-4, atol=1e-6)


def test_a_loaded_model_finds_rows_where_the_training_had_them(ran):
    *_, expected, trainer = ran["scan", "HWCN"]
    model = load(trainer.config.workdir, task=conv_task("HWCN"))
    pixels = np.random.default_rng(0).normal(size=(RECORDS, 6, 5, 2)).astype(np.float32)
    found = model.predict({"photo": {"pixels": np.moveaxis(pixels, 0, 3)}})["logits"]
    np.testing.assert_allclose(found, [each["logits"] for each in expected], atol=1e-5)


@pytest.fixture
def job_of(input_of, settings):
    """job_of("HWCN"): the Job of a training, and its input."""

    def made(layout):
        job = Job(conv_task(layout), settings(layout), Placement.of(axes=BatchAxes(AXES[layout])))
        return job, job.open("train", input_of(layout))

    return made


def test_the_lowered_step_transposes_nothing(job_of):
    job, opened = job_of("HWCN")
    text = jax.jit(training_step(job)).lower(job.abstract_state(opened), job.spec(opened)).as_text()
    assert "tensor<6x5x2x8xf32>" in text
    assert "stablehlo.transpose" not in text


def test_each_device_holds_its_records_of_one_batch_and_of_several(job_of):
    job, opened = job_of("HWCN")
    batch = next(opened.source.batches(0))
    for k in (None, 3):
        struct = job.placement.global_struct(opened.struct, opened.global_batch, k)
        host = batch if k is None else jax.tree.map(lambda leaf: np.stack([leaf] * 3), batch)
        placed = job.placement.place(host, struct)
        pixels, labels = placed["photo"]["pixels"], placed["label"]
        for image, label in zip(pixels.addressable_shards, labels.addressable_shards, strict=True):
            assert image.data.shape[-1] == label.data.shape[-1] == 2
            assert image.index[-1] == label.index[-1]
            np.testing.assert_array_equal(image.data, host["photo"]["pixels"][image.index])


def test_super_batches_have_as_many_bytes_as_with_rows_first(job_of):
    expected, found = (
        job.steps_per_dispatch(opened, 10**9, [], 10**6) for job, opened in map(job_of, AXES)
    )
    assert found == expected


@pytest.mark.parametrize(
    ("megabytes", "marks", "steps"), [(41, [], 40), (41, [20, 30], 20), (1, [], 1)]
)
def test_a_dispatch_is_cut_by_memory_and_by_the_nearest_mark(job_of, megabytes, marks, steps):
    job, opened = job_of("NHWC")
    limit = megabytes * 10**6
    assert job.steps_per_dispatch(opened, limit, marks, 50, out_bytes=10**6) == steps


def test_hosts_compare_records_not_the_rows_of_each(job_of):
    job, opened = job_of("HWCN")
    facts = facts_of(job, [opened], 0, 1)
    assert facts["the batch's photo/pixels"] == "float32 [6, 5, 2] per row"
    assert facts["batch_axis"] == {"photo/pixels": 3}


def test_plain_batches_get_a_mask_of_their_rows(settings):
    """Also where they are cut to the first batches."""
    images = np.ones((6, 5, 2, 8), np.float32)
    batch = {"label": np.zeros(8, np.int32), "photo": {"pixels": images}}
    only_images = {"photo": {"pixels": images}}
    for settled in (settings("HWCN"), settings("HWCN", overfit_batches=1)):
        for given in (batch, only_images):
            job = Job(conv_task("HWCN"), settled, Placement.of(axes=BatchAxes(AXES["HWCN"])))
            opened = job.open("train", lambda _, given=given: [given])
            assert (
                next(opened.source.batches(opened.source.info.start))["_mask"].tolist() == [1] * 8
            )


def trained(settings, batch, **others):
    Trainer(conv_task("HWCN"), settings("HWCN", **others)).train(lambda _: [batch], max_steps=1)


@pytest.mark.parametrize(
    ("shape", "axes", "error", "text"),
    [
        (
            (6, 5, 2, 7),
            {"photo/pixels": 3},
            InputError,
            "photo/pixels .* expected 8 rows along axis 3",
        ),
        (
            (6, 5, 2, 8),
            {"photo/pixels": 4},
            InputError,
            "photo/pixels .* expected 8 rows along axis 4",
        ),
        ((6, 5, 2, 8), {}, InputError, "photo/pixels .* expected 8 rows, this host's part"),
        (
            (6, 5, 2, 8),
            {"photo/pixel": 3},
            OptionError,
            "'photo/pixel', which the batch lacks. Did you mean",
        ),
        ((6, 5, 2, 8), {3: 3}, OptionError, "batch_axis names 3, which the batch lacks"),
    ],
)
def test_arrays_that_do_not_fit_are_named_with_their_shape_and_axis(
    settings, shape, axes, error, text
):
    batch = {"photo": {"pixels": np.ones(shape, np.float32)}, "label": np.zeros(8, np.int32)}
    with pytest.raises(error, match=text):
        trained(settings, batch, batch_axis=axes)


def test_an_evaluation_may_lack_an_array_of_the_training(settings):
    job = Job(conv_task("HWCN"), settings("HWCN"), Placement.of(axes=BatchAxes({"teacher": 1})))
    assert job.open("eval", lambda _: [{"label": np.zeros(16, np.int32)}]).struct.keys() == {
        "label",
        "_mask",
    }


def test_an_augmentation_is_refused_before_any_input_is_opened(settings):
    task = replace(conv_task("HWCN"), augment=lambda batch: batch)
    with pytest.raises(OptionError, match="Task.augment needs arrays with rows first"):
        Trainer(task, settings("HWCN"))
    Trainer(task, settings("HWCN", batch_axis={"photo/pixels": 0}))


def test_an_export_is_refused_and_nothing_is_written(ran, input_of, tmp_path):
    trainer, place = ran["scan", "HWCN"][3], str(tmp_path / "exports")
    with pytest.raises(OptionError, match="an export needs arrays with rows first"):
        trainer.export(place, input_of("HWCN"))
    exporting = Trainer(
        conv_task("HWCN"), trainer.config, callbacks=[Exporter(place, input_of("HWCN"))]
    )
    with pytest.raises(OptionError, match="an export needs arrays with rows first"):
        exporting.evaluate(input_of("HWCN"))
    assert list(tmp_path.iterdir()) == []
