"""metrics.jsonl read back: the columns of its scalars and times, over restarts, and from damaged and older files."""

import numpy as np
import pytest

from trainer.events import metrics_lines
from trainer.events.metrics_file import MetricsFile
from trainer.events.metrics_lines import read_columns


@pytest.fixture
def write(tmp_path):
    """write(first step, last step, now): a process that writes one step per second, from `now` on."""

    def process(first, last, now):
        clock = iter(np.arange(now, now + 1e6))
        lines = MetricsFile(str(tmp_path), first - 1, clock=lambda: next(clock))
        for step in range(first, last + 1):
            lines.steps(step, {"loss": np.array([0.5 if step % 2 else np.nan], np.float32)})
        lines.close()

    return process


def test_every_step_has_the_time_at_which_it_was_reported(write, tmp_path):
    write(1, 22, 1_790_000_000.25)
    write(11, 20, 1_790_001_000.5)  # a process that resumed replaces the later steps of the one before
    times = read_columns(str(tmp_path))["time"]
    assert times.steps.tolist() == list(range(1, 21))
    assert times.values.tolist() == [1_790_000_000.25 + at for at in range(10)] + [
        1_790_001_000.5 + at for at in range(10)
    ]
    assert times.at(np.array([10, 11])).tolist() == [1_790_000_009.25, 1_790_001_000.5]
    assert np.isnan(times.at(np.array([0, 21]))).all()


def test_lines_of_an_older_version_have_scalars_and_no_time(write, tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}\n')
    write(3, 4, 1_790_000_000.0)
    columns = read_columns(str(tmp_path))
    assert columns["loss"].steps.tolist() == [1, 2, 3, 4]
    assert columns["time"].steps.tolist() == [3, 4]


def test_files_are_read_in_pieces_that_end_anywhere(tmp_path, monkeypatch):
    lines = MetricsFile(str(tmp_path), 0)
    lines.steps(1, {"loss": np.linspace(0, 1, 40), "näme": np.linspace(1, 2, 40)})
    lines.close()
    columns = read_columns(str(tmp_path))
    for size in (1, 7, 100):
        monkeypatch.setattr(metrics_lines, "PIECE_BYTES", size)
        again = read_columns(str(tmp_path))
        assert {name: column.values.tolist() for name, column in again.items()} == {
            name: column.values.tolist() for name, column in columns.items()
        }
    assert len(columns["näme"].values) == 40


def test_the_last_value_of_a_step_evaluated_twice_counts(tmp_path):
    lines = MetricsFile(str(tmp_path))
    for step, loss in ((20, 0.5), (10, 0.75), (20, 0.25), (30, float("inf"))):
        lines.scalars(step, {"loss": loss})
    lines.close()
    column = read_columns(str(tmp_path))["loss"]
    assert column.steps.tolist() == [10, 20, 30]
    assert column.values.tolist() == [0.75, 0.25, float("inf")]


def test_a_directory_without_files_has_no_columns(tmp_path):
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
