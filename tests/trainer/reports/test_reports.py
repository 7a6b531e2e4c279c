"""A run tells every step, though the host looks once a dispatch, to TensorBoard and in metrics.jsonl alike."""

import json
import struct
import time
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import SessionLog

from pipeline.errors import InputError, OptionError
from trainer.reports.writer import Reports
from trainer.trainer import Trainer


@pytest.fixture
def shown(events_in):
    """shown(directory): (events, [{"step": ..., scalars}] of the events, the lines of metrics.jsonl)."""

    def read(directory):
        events = events_in(directory)
        points = [
            {"step": event.step} | {value.tag: value.simple_value for value in event.summary.value}
            for event in events
            if any(value.WhichOneof("value") == "simple_value" for value in event.summary.value)
        ]
        lines = [
            json.loads(line) for line in Path(directory, "metrics.jsonl").read_text().splitlines()
        ]
        return events, points, lines

    return read


def bits(point):
    """Of all that came from a device; speeds are doubles, which are rounded in more than one way."""
    return {
        name: struct.pack("f", value)
        for name, value in point.items()
        if name != "time" and not name.startswith("speed/")
    }


@pytest.mark.parametrize("name", ["step", "time"])
def test_a_scalar_named_as_the_step_or_the_time_is_refused_on_every_host(config, name):
    for settings in (config(), config(fast_dev_run=1)):
        with (
            Reports(settings, "train") as reports,
            pytest.raises(OptionError, match=rf"'{name}', .* Choose another name"),
        ):
            reports.scalars(1, {"lr": 0.1, name: 7.0})


def test_every_step_and_every_evaluation_is_one_point_and_one_line_with_all_its_numbers(
    dense_task, vector_input, config, shown
):
    settings = config(iterations_per_loop=6, log_every=10)
    trainer, began = Trainer(dense_task, settings), time.time() - 0.001
    result = trainer.train(vector_input, steps=20)
    events, points, lines = shown(f"{settings.workdir}/train")
    assert [point["step"] for point in points] == list(range(1, 21))
    assert all(point.keys() >= {"loss", "accuracy", "grad_norm"} for point in points)
    assert "_finite" not in points[0]
    assert points[-1]["speed/steps_per_second"] > 0
    assert bits(points[-1]).items() >= bits(result.metrics).items()
    assert [bits(line) for line in lines] == [bits(point) for point in points]
    times = [line.pop("time") for line in lines]
    assert times == sorted(times)
    assert began <= times[0] <= times[-1] <= time.time() + 0.001
    assert lines[-1] == pytest.approx(points[-1], rel=1e-6)
    (text,) = [
        value.tensor.string_val[0]
        for event in events
        for value in event.summary.value
        if value.tag == "config"
    ]
    assert json.loads(text)["iterations_per_loop"] == 6

    evaluated = trainer.evaluate(vector_input)
    _, points, lines = shown(f"{settings.workdir}/eval")
    assert (
        [bits(point) for point in points]
        == [bits(line) for line in lines]
        == [bits({"step": 20} | evaluated.metrics)]
    )


def test_reported_metrics_do_not_depend_on_the_steps_per_dispatch(
    dense_task, vector_input, config, shown
):
    told = []
    for k in (1, 6):
        settings = config(f"k{k}", iterations_per_loop=k, log_every=4)
        Trainer(dense_task, settings).train(vector_input, steps=18)
        told.append([bits(line) for line in shown(f"{settings.workdir}/train")[2]])
    assert told[0] == told[1]


def test_a_resumed_run_reports_each_step_once_without_lost_steps(
    dense_task, vectors, make_input, vector_input, config, shown
):
    def dying(ctx):
        source = make_input(vectors, ctx)
        source.batches = lambda position: iter([source._batch(i) for i in range(9)])
        return source

    settings = config(checkpoint_every_steps=5, iterations_per_loop=1)
    with pytest.raises(InputError):
        Trainer(dense_task, settings).train(dying, max_steps=10)
    _, _, broken = shown(f"{settings.workdir}/train")
    assert [line["step"] for line in broken] == list(range(1, 9))
    Trainer(dense_task, settings).train(vector_input, max_steps=7)
    events, points, lines = shown(f"{settings.workdir}/train")
    assert [line["step"] for line in lines] == list(range(1, 8))
    assert lines[:5] == broken[:5]
    assert [event.step for event in events if event.session_log.status == SessionLog.START] == [
        1,
        6,
    ]
    assert [point["step"] for point in points][-2:] == [6, 7]
