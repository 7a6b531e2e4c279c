"""What a training measures: its speed in FLOPs, for callbacks as well, and its goodput."""

import time
from dataclasses import replace

import pytest

from pipeline.errors import OptionError
from trainer.callbacks import Callback
from trainer.events.progress import IdleCores
from trainer.trainer import Trainer


def test_the_speed_is_measured_in_the_flops_of_the_step(dense_task, vector_input, config):
    speeds = []

    class Listener(Callback):
        def on_loop_end(self, end):
            speeds.append((end.step, end.speed))

    settings = config(iterations_per_loop=5, log_every=10, peak_tflops=0.5)
    counted = Trainer(dense_task, settings, callbacks=[Listener()]).train(vector_input, max_steps=15).speed
    layers = 2 * 16 * (8 * 16 + 16 * 3)
    gradient = 2 * layers - 2 * 16 * 8 * 16  # none for the batch
    flops = counted.tflops_per_second * 1e12 / counted.steps_per_second
    assert layers + gradient <= flops < 1.1 * (layers + gradient)  # norms of the gradients are products, too
    assert counted.mfu == pytest.approx(counted.tflops_per_second / (4 * 0.5))
    assert [(step, bool(speed)) for step, speed in speeds] == [(5, False), (10, True), (15, True)]
    assert all(speed.mfu > 0 for _, speed in speeds if speed)

    told = replace(dense_task, flops=7e9)
    speed = Trainer(told, config("told")).train(vector_input, max_steps=5).speed
    assert speed.tflops_per_second * 1e12 == pytest.approx(speed.steps_per_second * 7e9)
    assert speed.mfu is None


@pytest.mark.parametrize("flops", [0, -1e9, float("nan")])
def test_flops_that_no_step_has_are_refused(dense_task, flops):
    with pytest.raises(OptionError, match=f"flops={flops} must be above 0. Give those of one training step, or None"):
        replace(dense_task, flops=flops)


@pytest.mark.parametrize(
    ("workers", "wait", "busy", "cores", "number"),
    [
        (0, 0.7, 1.1, 8, 4),  # the devices could take 3.3 times as much
        (0, 0.99, 1.0, 4, 3),  # no more than cores are idle
        (0, 0.1, 1.0, 8, None),  # it hardly waits
        (0, 0.7, 0.1, 8, None),  # for a bucket, not for the lock
        (0, 0.7, 7.8, 8, None),  # all cores are busy
        (2, 0.7, 1.1, 8, None),  # there are workers
    ],
)
def test_workers_are_proposed_once_where_the_input_waits_although_cores_are_idle(
    workers, wait, busy, cores, number, monkeypatch, caplog
):
    caplog.set_level("INFO", "trainer")
    clock = {"wall": 0.0, "cpu": 0.0}
    monkeypatch.setattr(time, "perf_counter", lambda: clock["wall"])
    monkeypatch.setattr(time, "process_time", lambda: clock["cpu"])
    idle = IdleCores(workers, cores)
    for _ in range(3):
        clock["wall"] += 10
        clock["cpu"] += 10 * busy
        idle.observe(wait)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (number is not None)
    assert all(f"try --input-workers={number}, processes that make the batches" in text for text in told)


def test_the_clock_of_the_cpu_is_read_once_a_second_however_short_the_dispatches(monkeypatch):
    read, wall = [], [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: wall[0])
    monkeypatch.setattr(time, "process_time", lambda: read.append(wall[0]) or 0.0)
    idle = IdleCores(0, 8)
    for _ in range(500):
        wall[0] += 0.01
        idle.observe(0.1)
    assert 4 <= len(read) <= 6
