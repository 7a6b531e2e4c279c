"""What a training measures: its speed in FLOPs, for callbacks as well, and its goodput."""

from dataclasses import replace

import pytest

from pipeline.errors import OptionError
from trainer.callbacks import Callback
from trainer.loop.train_loop import first_began
from trainer.reports.segments import Start, append
from trainer.results import Goodput
from trainer.trainer import Trainer


def test_the_speed_is_measured_in_the_flops_of_the_step(dense_task, vector_input, config):
    speeds = []

    class Listener(Callback):
        def on_loop_end(self, end):
            speeds.append((end.step, end.speed))

    settings = config(iterations_per_loop=5, log_every=10, peak_tflops=0.5)
    counted = (
        Trainer(dense_task, settings, callbacks=[Listener()])
        .train(vector_input, max_steps=15)
        .speed
    )
    layers = 2 * 16 * (8 * 16 + 16 * 3)
    gradient = 2 * layers - 2 * 16 * 8 * 16  # none for the batch
    flops = counted.tflops_per_second * 1e12 / counted.steps_per_second
    # norms of the gradients are products, too
    assert layers + gradient <= flops < 1.1 * (layers + gradient)
    assert counted.mfu == pytest.approx(counted.tflops_per_second / (4 * 0.5))
    assert [(step, bool(speed)) for step, speed in speeds] == [(5, False), (10, True), (15, True)]
    assert all(speed.mfu > 0 for _, speed in speeds if speed)

    told = replace(dense_task, flops=7e9)
    speed = Trainer(told, config("told")).train(vector_input, max_steps=5).speed
    assert speed.tflops_per_second * 1e12 == pytest.approx(speed.steps_per_second * 7e9)
    assert speed.mfu is None


@pytest.mark.parametrize("flops", [0, -1e9, float("nan")])
def test_flops_that_no_step_has_are_refused(dense_task, flops):
    with pytest.raises(
        OptionError,
        match=f"flops={flops} must be above 0. Give those of one training step, or None",
    ):
        replace(dense_task, flops=flops)


def test_the_share_is_that_of_the_wall_time():
    assert Goodput(50.0, 200.0).share == 0.25


def test_training_began_with_the_first_run_in_the_work_directory(tmp_path):
    workdir = str(tmp_path)
    assert first_began(workdir, now=1000.5) == 1000.5
    for minute in range(2):
        append(
            workdir,
            Start(0, f"1970-01-01T00:0{minute}:30+00:00", {}, None, {}, None, {}, "1 x cpu"),
        )
    assert first_began(workdir, now=1300.0) == 30
