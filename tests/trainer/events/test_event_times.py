"""When steps were reported, by the event files: as their protos tell, over restarts, and from damaged files."""

import numpy as np
import pytest

from trainer.events import growing_files
from trainer.events.columns import read_columns
from trainer.events.event_times import read_event_times
from trainer.events.metrics_file import MetricsFile
from trainer.events.writer import EventWriter
from trainer.workdir import EVENTS


@pytest.fixture
def write(tmp_path):
    """write(first step, last step, now): a process that writes one step per second, from `now` on."""

    def process(first, last, now, **options):
        clock = iter(np.arange(now, now + 1e6))
        writer = EventWriter(str(tmp_path), first, clock=lambda: next(clock), **options)
        writer.text(first - 1, "config", "the settings")
        for step in range(first, last + 1):
            writer.steps(step, {"loss": np.array([0.5], np.float32)})
        writer.image(last, "picture", np.zeros((4, 4, 1), np.uint8))
        writer.close()

    return process


def test_the_times_of_steps_are_those_of_their_events(write, tmp_path, events_in):
    write(1, 300, 1_790_000_000.25)  # steps of one and two bytes
    told = {event.step: event.wall_time for event in events_in(tmp_path) if event.step}
    times = read_event_times(str(tmp_path))
    assert times.steps.tolist() == list(range(1, 301)) == sorted(told)
    assert times.times.tolist() == [told[step] for step in range(1, 301)]


def test_a_process_that_resumed_replaces_the_later_steps_of_the_one_before(write, tmp_path):
    write(1, 22, 1_790_000_000.0)
    write(11, 20, 1_790_001_000.0)
    times = read_event_times(str(tmp_path))
    assert [(process.first, process.last) for process in times.processes] == [(1, 22), (11, 20)]
    assert times.steps.tolist() == list(range(1, 21))
    first, second = times.of(np.array([10, 11]))
    assert first < 1_790_000_100 < 1_790_001_000 < second
    assert np.isnan(times.of(np.array([0, 21]))).all()


DAMAGES = {
    "cut": lambda data: data[:-5],
    "overwritten": lambda data: data[:-60] + bytes([255]) * 60,
    "a frame of one byte": lambda data: data + (1).to_bytes(8, "little") + bytes(20),
    "an event without a step": lambda data: data + (9).to_bytes(8, "little") + bytes(4) + b"\x09" + bytes(12),
    "a step without an end": lambda data: (
        data + (11).to_bytes(8, "little") + bytes(4) + b"\x09" + bytes(8) + b"\x10\xff" * 3
    ),
} | {f"{count} zeros": lambda data, count=count: data + bytes(count) for count in range(1000, 1016)}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_the_rest_of_a_damaged_file_is_left_out(write, tmp_path, damage):
    write(1, 50, 1_790_000_000.0)
    (path,) = tmp_path.glob(f"{EVENTS}*")
    path.write_bytes(damage(path.read_bytes()))
    steps = read_event_times(str(tmp_path)).steps.tolist()
    assert 45 <= len(steps) <= 50
    assert steps == list(range(1, len(steps) + 1))


def test_files_are_read_in_pieces_that_end_anywhere(write, tmp_path, monkeypatch):
    write(1, 40, 1_790_000_000.0)
    lines = MetricsFile(str(tmp_path), 0)
    lines.steps(1, {"loss": np.linspace(0, 1, 40), "näme": np.linspace(1, 2, 40)})
    lines.close()
    whole, columns = read_event_times(str(tmp_path)), read_columns(str(tmp_path))
    for size in (1, 7, 100):
        monkeypatch.setattr(growing_files, "PIECE_BYTES", size)
        assert read_event_times(str(tmp_path)).times.tolist() == whole.times.tolist()
        again = read_columns(str(tmp_path))
        assert {name: column.values.tolist() for name, column in again.items()} == {
            name: column.values.tolist() for name, column in columns.items()
        }
    assert len(columns["näme"].values) == 40


def test_of_a_step_that_was_evaluated_twice_the_last_value_counts(tmp_path):
    lines = MetricsFile(str(tmp_path))
    for step, loss in ((20, 0.5), (10, 0.75), (20, 0.25), (30, float("inf"))):
        lines.scalars(step, {"loss": loss})
    lines.close()
    column = read_columns(str(tmp_path))["loss"]
    assert column.steps.tolist() == [10, 20, 30]
    assert column.values.tolist() == [0.75, 0.25, float("inf")]


def test_a_directory_without_files_has_no_times_and_no_columns(tmp_path):
    assert len(read_event_times(str(tmp_path / "none")).steps) == 0
    assert read_columns(str(tmp_path / "none")) == {}


def test_lines_that_are_no_scalars_and_other_files_are_skipped(tmp_path):
    lines = [
        '{"step": 1, "loss": 0.5}',
        '{"step": 2, "loss": "abc"}',
        '{"step": 3, "loss": "abcN"}',
        '{"step": 99999999999999999999, "loss": 1}',
        '{"step": 4.5, "loss": 1}',
        '{"step": 5, "loss": null}',
        '{"step": 6, "loss": 0.25, "step": 0.5}',
        '{"step": 7, "loss": "Infinity"}',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    (tmp_path / "metrics.jsonl.bak").write_text('{"step": 7, "loss": 77}\n')
    (tmp_path / "metrics.jsonl.000001").write_text('{"step": 8, "loss": 0.125}\n')
    column = read_columns(str(tmp_path))["loss"]
    assert dict(zip(column.steps.tolist(), column.values.tolist(), strict=True)) == {
        1: 0.5,
        6: 0.25,
        7: float("inf"),
        8: 0.125,
    }
