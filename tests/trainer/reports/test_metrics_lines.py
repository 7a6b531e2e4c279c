"""metrics.jsonl read back: the newest of each scalar and the lines of steps, over restarts, and from damaged files."""

import numpy as np
import pytest

from pipeline.errors import CheckpointError
from trainer.reports import metrics_lines
from trainer.reports.metrics_file import MetricsFile
from trainer.reports.metrics_lines import newest


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


def read(directory, steps=None):
    return list(metrics_lines.metrics_lines(str(directory), steps))


def test_every_step_has_the_time_at_which_it_was_reported(write, tmp_path):
    write(1, 22, 1_790_000_000.25)
    # a process that resumed replaces the later steps of the one before
    write(11, 20, 1_790_001_000.5)
    times = {step: values["time"] for step, values in read(tmp_path)}
    assert times == {step: 1_790_000_000.25 + step - 1 for step in range(1, 11)} | {
        step: 1_790_001_000.5 + step - 11 for step in range(11, 21)
    }
    assert [step for step, _ in read(tmp_path, range(9, 12))] == [9, 10, 11]
    assert newest(str(tmp_path))[0] == 20


def test_files_are_read_in_pieces_that_end_anywhere(tmp_path, monkeypatch):
    lines = MetricsFile(str(tmp_path), 0)
    lines.steps(1, {"loss": np.linspace(0, 1, 40), "näme": np.linspace(1, 2, 40)})
    lines.close()
    found = read(tmp_path)
    assert len(found) == 40
    for size in (1, 7, 100):
        monkeypatch.setattr(metrics_lines, "PIECE_BYTES", size)
        assert read(tmp_path) == found


def test_the_newest_value_of_each_scalar_may_be_of_an_earlier_step(tmp_path):
    lines = MetricsFile(str(tmp_path))
    lines.scalars(10, {"loss": 0.75, "speed": 3.0})
    lines.scalars(20, {"loss": float("inf")})
    lines.close()
    step, values = newest(str(tmp_path))
    values.pop("time")
    assert (step, values) == (20, {"loss": float("inf"), "speed": 3.0})


def test_a_directory_without_files_has_no_values(tmp_path):
    assert newest(str(tmp_path / "none")) == (None, {})
    assert read(tmp_path / "none") == []


def test_incomplete_lines_and_other_files_are_skipped(tmp_path):
    lines = [
        '{"step": 1, "loss": 0.5}',
        '{"step": 2, "loss": "abc',
        '{"step": 99999999999999999999, "loss": 1}',
        '{"step": 4.5, "loss": 1}',
        '{"step": 6, "loss": 0.25, "step": 0.5}',
        '{"step": 7, "loss": "Infinity"}',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    (tmp_path / "metrics.jsonl.bak").write_text('{"step": 7, "loss": 77}\n')
    (tmp_path / "metrics.jsonl.000001").write_text('{"step": 8, "loss": 0.125}\n{"step": 9, "lo')
    expected = {1: 0.5, 6: 0.25, 7: float("inf"), 8: 0.125}
    assert {step: values["loss"] for step, values in read(tmp_path)} == expected
    assert newest(str(tmp_path)) == (8, {"loss": 0.125})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ('"abc"', "loss is 'abc', not a number, in"),
        ("null", r"Expected `.*`, got `null`.*, in the line"),
    ],
)
def test_something_else_than_a_number_is_an_error_that_names_the_line(tmp_path, value, message):
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 2, "loss": {value}}}\n')
    for reader in (read, newest):
        with pytest.raises(CheckpointError, match=message):
            reader(str(tmp_path))
