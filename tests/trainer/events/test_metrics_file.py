"""metrics.jsonl: lines of valid JSON, on disk and in parts, and none that the run has not made."""

import json
from pathlib import Path

import pytest

from pipeline.shards.gcs import GcsStorage
from trainer.events.metrics_file import MetricsFile


def lines_of(path):
    def refused(word):
        raise AssertionError(f"{word} is no JSON")

    return [json.loads(line, parse_constant=refused) for line in Path(path).read_text().splitlines()]


def write(directory, steps, after=None):
    file = MetricsFile(str(directory), after)
    for step in steps:
        file.scalars(step, {"loss": step / 8})
    return file


def test_numbers_that_are_not_finite_are_strings_and_float_reads_them(tmp_path):
    file = MetricsFile(str(tmp_path))
    file.scalars(1, {"a%": float("nan"), "b": float("inf"), "c": -float("inf"), "d": 0.5})
    file.scalars(2, {"a%": 1.0, 'b"': 1e300})
    file.close()
    first, second = lines_of(tmp_path / "metrics.jsonl")
    assert first == {"step": 1, "a%": "NaN", "b": "Infinity", "c": "-Infinity", "d": 0.5}
    assert [str(float(first[name])) for name in ("a%", "b", "c")] == ["nan", "inf", "-inf"]
    assert second == {"step": 2, "a%": 1.0, 'b"': 1e300}


@pytest.mark.parametrize(("after", "kept"), [(None, 4), (9, 4), (3, 3), (0, 0)])
def test_half_a_line_and_the_lines_of_later_steps_are_cut(tmp_path, after, kept):
    write(tmp_path, range(1, 5)).close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')
    write(tmp_path, [7], after).close()
    assert [line["step"] for line in lines_of(tmp_path / "metrics.jsonl")] == [*range(1, kept + 1), 7]


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
