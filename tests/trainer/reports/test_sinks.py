"""Events in a bucket: parts that are few, whole, and one run for TensorBoard. On disk they stay one file."""

import pytest
from tensorboard.compat.proto.event_pb2 import Event

from pipeline.errors import StorageError
from pipeline.storage.gcs import GcsStorage
from pipeline.storage.storage import join
from trainer.reports.metrics_file import PartsSink
from trainer.reports.writer import EventWriter


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def tensorboard_shows(logdir):
    """{run: {tag: [(step, value), ...]}} as TensorBoard reads a directory."""
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

    runs = EventMultiplexer(size_guidance={"scalars": 0}).AddRunsFromDirectory(str(logdir)).Reload()
    return {
        run: {
            tag: [(point.step, point.value) for point in runs.Scalars(run, tag)]
            for tag in tags["scalars"]
        }
        for run, tags in runs.Runs().items()
    }


@pytest.fixture
def open_writer(bucket, clock):
    """An EventWriter whose parts go to the run "train" of the bucket, by this clock."""

    def make(resumed_at=None):
        def open_sink(directory, name, head):
            return PartsSink(GcsStorage(), directory, name, head, clock)

        return EventWriter(join(bucket, "train"), resumed_at, clock, open_sink)

    return make


@pytest.fixture
def parts(bucket):
    """The names of the parts so far."""
    return lambda: list(GcsStorage().list(join(bucket, "train")))


def test_a_part_appears_at_most_every_30_seconds_and_at_the_end(open_writer, parts, clock):
    writer, seen = open_writer(), []
    for step in range(101):  # 10 s a step
        writer.scalars(step, {"loss": 1.0})
        writer.flush()
        seen.append(len(parts()))
        clock.now += 10.0
    assert seen == [step // 3 for step in range(101)]
    writer.close()
    writer.close()
    assert len(parts()) == seen[-1] + 1 == 34


def test_flush_now_publishes_immediately_and_an_empty_flush_writes_no_part(
    open_writer, parts, clock
):
    writer = open_writer()
    writer.flush(now=True)
    assert parts() == []
    writer.scalars(1, {"loss": 1.0})
    writer.flush()
    assert parts() == []
    writer.flush(now=True)
    writer.flush(now=True)
    clock.now += 60.0
    writer.flush()
    writer.close()
    assert len(parts()) == 1


def test_tensorboard_shows_the_parts_as_one_run_and_a_resumed_one_in_place_of_the_broken(
    open_writer, parts, clock, bucket, tmp_path
):
    first = open_writer()
    for step in range(1, 26):
        first.scalars(step, {"loss": step / 2})
        first.flush(now=True)
    clock.now -= 7.0  # the machine's clock is set right: the parts keep their order
    first.scalars(26, {"loss": 13.0})
    first.close()
    clock.now += 60.0
    second = open_writer(resumed_at=21)
    for step in range(21, 31):
        second.scalars(step, {"loss": float(step)})
        second.flush(now=True)
    names = parts()
    assert len(names) == 26 + 10
    (tmp_path / "train").mkdir()
    for name in names:
        data = GcsStorage().read(join(join(bucket, "train"), name))
        (tmp_path / "train" / name).write_bytes(data)
        length = int.from_bytes(data[:8], "little")
        assert Event.FromString(data[12 : 12 + length]).file_version == "brain.Event:2"
    expected = [(step, step / 2) for step in range(1, 21)] + [
        (step, float(step)) for step in range(21, 31)
    ]
    assert tensorboard_shows(tmp_path) == {"train": {"loss": expected}}


def test_events_of_a_refused_part_are_written_with_the_next(open_writer, parts, gcs_server):
    from fake_gcs.server import Status

    writer = open_writer()
    writer.scalars(1, {"loss": 0.5})
    gcs_server.fail("POST .*tfevents", Status(403))
    with pytest.raises(
        StorageError, match=r"create gs://.*/train/events.*\.000000: permission denied"
    ):
        writer.flush(now=True)
    writer.close()
    assert len(parts()) == 1
