"""TensorBoard gets every step of training, though the host looks once a dispatch."""

import struct
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event, SessionLog

from pipeline.shards.errors import InputError
from pipeline.shards.record import crc32c, masked
from trainer.events.writer import EventWriter
from trainer.trainer import Trainer


def events_in(directory):
    """Every event of a run's files, oldest first, with both checksums checked."""
    events = []
    for path in sorted(Path(directory).iterdir(), key=lambda p: int(p.suffix[1:])):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            payload = data[12 : 12 + length]
            assert data[8:12] == struct.pack("<I", masked(crc32c(data[:8])))
            assert data[12 + length : 16 + length] == struct.pack("<I", masked(crc32c(payload)))
            events.append(Event.FromString(payload))
            data = data[16 + length :]
    return events


def points(events, tag):
    return [(event.step, v.simple_value) for event in events for v in event.summary.value if v.tag == tag]


def test_a_file_begins_with_its_version_and_holds_what_was_written(tmp_path):
    writer = EventWriter(str(tmp_path), clock=lambda: 1234.5)
    writer.scalars(7, {"loss": 0.5, "accuracy": 0.25})
    writer.close()
    version, event = events_in(tmp_path)
    assert (version.file_version, version.wall_time) == ("brain.Event:2", 1234.5)
    assert {value.tag: value.simple_value for value in event.summary.value} == {"loss": 0.5, "accuracy": 0.25}
    assert event.step == 7


def test_two_writers_of_one_second_have_a_file_each(tmp_path):
    for _ in range(2):
        EventWriter(str(tmp_path), clock=lambda: 5.0).close()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("k", [1, 6])
def test_every_step_of_training_has_one_point_for_every_metric(dense_task, vector_input, config, k):
    settings = config(iterations_per_loop=k, log_every=10)
    result = Trainer(dense_task, settings).train(vector_input, steps=20)
    events = events_in(Path(settings.workdir) / "train")
    for tag in ("loss", "accuracy", "grad_norm"):
        assert [step for step, _ in points(events, tag)] == list(range(1, 21))
    assert points(events, "loss")[-1][1] == pytest.approx(result.metrics["loss"])
    assert not points(events, "_finite")
    assert points(events, "speed/steps_per_second")[-1][0] == 20


def test_a_resumed_run_drops_the_points_of_the_broken_one(dense_task, vectors, make_input, vector_input, config):
    def dying(ctx):
        source = make_input(vectors, ctx)
        source.batches = lambda position: iter([source._batch(i) for i in range(8)])
        return source

    settings = config(checkpoint_every_steps=5)
    with pytest.raises(InputError):
        Trainer(dense_task, settings).train(dying, max_steps=10)
    Trainer(dense_task, settings).train(vector_input, max_steps=10)
    events = events_in(Path(settings.workdir) / "train")
    restarts = [event.step for event in events if event.session_log.status == SessionLog.START]
    assert restarts == [6]
    steps = [step for step, _ in points(events, "loss")]
    assert steps[-5:] == [6, 7, 8, 9, 10]


def test_an_evaluation_is_a_point_at_its_step(dense_task, vector_input, config):
    trainer = Trainer(dense_task, config())
    trainer.train(vector_input, steps=3)
    result = trainer.evaluate(vector_input)
    events = events_in(Path(trainer.config.workdir) / "eval")
    assert points(events, "accuracy") == [(3, pytest.approx(result.metrics["accuracy"]))]
