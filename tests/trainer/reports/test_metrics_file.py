"""metrics.jsonl: lines of valid JSON, on disk and in parts, and read back."""

import json
import os
from pathlib import Path

import pytest

from pipeline.errors import OwnerError, StorageError
from pipeline.storage.gcs import GcsStorage
from pipeline.storage.schemes import open_storage
from trainer.reports.metrics_file import MetricsFile
from trainer.reports.metrics_lines import last_step, metrics_lines

NOW = 1_790_164_800.125


def test_a_line_that_is_not_utf_8_is_skipped(tmp_path):
    write(tmp_path, [1]).close()
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(
            b'{"step": 2, "loss": "\xff"}\n{"step": 3, "\xff": 1}\n{"step": 4, "loss": 0.5}\n'
        )
    assert [step for step, _ in metrics_lines(str(tmp_path))] == [1, 4]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("after", [None, 7])
def test_a_named_pipe_as_metrics_file_is_refused_without_waiting(tmp_path, after):
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(
        StorageError, match=r"metrics\.jsonl is a directory or a device, not a file\."
    ):
        MetricsFile(str(tmp_path), after)


def lines_of(path):
    def refused(word):
        raise AssertionError(f"{word} is no JSON")

    return [
        json.loads(line, parse_constant=refused) for line in Path(path).read_text().splitlines()
    ]


def write(directory, steps, after=None):
    file = MetricsFile(str(directory), after, clock=lambda: NOW)
    for step in steps:
        file.scalars(step, {"loss": step / 8})
    return file


def test_numbers_that_are_not_finite_are_strings_and_float_reads_them(tmp_path):
    file = MetricsFile(str(tmp_path), clock=lambda: NOW)
    file.scalars(1, {"a%": float("nan"), "b": float("inf"), "c": -float("inf"), "d": 0.5})
    file.scalars(2, {"a%": 1.0, 'b"': 1e300})
    file.close()
    first, second = lines_of(tmp_path / "metrics.jsonl")
    assert first == {
        "step": 1,
        "time": NOW,
        "a%": "NaN",
        "b": "Infinity",
        "c": "-Infinity",
        "d": 0.5,
    }
    assert [str(float(first[name])) for name in ("a%", "b", "c")] == ["nan", "inf", "-inf"]
    assert second == {"step": 2, "time": NOW, "a%": 1.0, 'b"': 1e300}


@pytest.mark.parametrize(("after", "kept"), [(9, 4), (3, 3), (0, 0)])
def test_half_a_line_and_the_lines_of_later_steps_are_cut(tmp_path, after, kept):
    write(tmp_path, range(1, 5)).close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')
    write(tmp_path, [7], after).close()
    assert [line["step"] for line in lines_of(tmp_path / "metrics.jsonl")] == [
        *range(1, kept + 1),
        7,
    ]


@pytest.mark.parametrize(("after", "kept"), [(None, 9), (7, 7), (6, 6), (2, 2), (0, 0)])
def test_the_parts_in_a_bucket_are_the_file_also_after_a_resume(bucket, after, kept):
    file = MetricsFile(bucket)
    for first in (1, 4, 7):
        for step in range(first, first + 3):
            file.scalars(step, {"loss": 1.0})
        file.flush(now=True)
    file.close()
    write(bucket, [20, 21], after).close()
    names = list(GcsStorage().list(bucket))
    assert names == [f"metrics.jsonl.{number:06d}" for number in range(-(-kept // 3) + 1)]
    lines = b"".join(GcsStorage().read(f"{bucket}/{name}") for name in names).splitlines()
    assert [json.loads(line)["step"] for line in lines] == [*range(1, kept + 1), 20, 21]


@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_evaluations_at_the_same_time_keep_each_others_lines(tmp_path, request, where):
    directory = request.getfixturevalue("bucket") if where == "bucket" else str(tmp_path)
    files = [MetricsFile(directory) for _ in range(3)]
    for number, file in enumerate(files):
        file.scalars(number, {"loss": 0.5})
    for file in files:
        file.close()
    storage = open_storage(directory)
    lines = b"".join(
        storage.read(f"{directory}/{name}") for name in storage.list(directory)
    ).splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2]


def test_half_a_line_stays_as_another_evaluation_may_be_writing_it(tmp_path):
    other = write(tmp_path, [1])
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 0, "lo')
    write(tmp_path, [2]).close()
    other.close()
    assert (tmp_path / "metrics.jsonl").read_bytes().splitlines()[0] == b'{"step": 0, "lo'
    assert sorted((tmp_path / "metrics.jsonl").read_bytes().splitlines()[1:]) == [
        b'{"step": 1, "time": 1790164800.125, "loss": 0.125}',
        b'{"step": 2, "time": 1790164800.125, "loss": 0.25}',
    ]


@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_metrics_are_not_written_after_the_fence_raised(tmp_path, request, where):
    directory = request.getfixturevalue("bucket") if where == "bucket" else str(tmp_path)

    def fence():
        raise OwnerError("taken over")

    file = MetricsFile(directory, 0, fence)
    file.scalars(1, {"loss": 0.5})
    for publish in (lambda: file.flush(now=True), file.close):
        with pytest.raises(OwnerError):
            publish()
    storage = open_storage(directory)
    assert b"".join(storage.read(f"{directory}/{name}") for name in storage.list(directory)) == b""


def test_late_metrics_of_a_previous_owner_do_not_appear(tmp_path):
    old = write(tmp_path, [1, 2])
    old.flush()
    write(tmp_path, [3], after=2).close()
    old.scalars(9, {"loss": 0.5})
    old.close()
    assert [line["step"] for line in lines_of(tmp_path / "metrics.jsonl")] == [1, 2, 3]


def test_the_last_step_is_read_from_the_end_of_the_file(tmp_path):
    assert last_step(str(tmp_path)) is None
    write(tmp_path, [1, 2, 30]).close()
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"st')  # of a process that was killed
    assert last_step(str(tmp_path)) == 30


@pytest.mark.timeout(20)
def test_the_last_step_does_not_wait_for_a_named_pipe(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    assert last_step(str(tmp_path)) is None
