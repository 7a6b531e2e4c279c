"""segments.jsonl: written once per start, read back, and damaged."""

import json
from dataclasses import replace

import pytest

from pipeline.errors import CheckpointError, OptionError
from trainer.history.seen import start_of
from trainer.history.segments import BadRecords, Command, End, History, Start, append, read_history

START = Start(
    step=0,
    time="2026-11-23T12:00:00+00:00",
    position={"epoch": 0, "records": 0},
    input={"order": {}, "sources": []},
    settings={"seed": 1},
    command=Command("digits", ["--seed", "1"], "/home"),
    versions={"jax": "1"},
    devices="1 x cpu, 1 process",
)


def test_what_is_appended_is_read_back_in_order(tmp_path):
    lines = [START, BadRecords("data", {"7": "truncated"}), End(12, START.time, "finished"), replace(START, step=12)]
    for line in lines:
        append(str(tmp_path), line)
    history = read_history(str(tmp_path))
    assert list(history.lines) == lines
    assert history.starts == [lines[0], lines[3]]
    assert (history.bad_records("data"), history.bad_records("other")) == ({7: "truncated"}, {})


def test_a_work_directory_without_one_has_an_empty_history(tmp_path):
    assert read_history(str(tmp_path)) == History()


def test_in_a_bucket_hosts_add_to_one_object(bucket):
    for step in (0, 5):
        append(f"{bucket}/run", replace(START, step=step))
    assert [start.step for start in read_history(f"{bucket}/run").starts] == [0, 5]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", r"segments\.jsonl, line 2 is not JSON"),
        ("[]", r"line 2: its kind is none of start, bad records, end\. The file is damaged: remove the line"),
        ('{"kind": "stop"}', r"line 2: its kind is none of start"),
        (
            '{"kind": "end", "step": "x", "time": "", "reason": ""}',
            r"line 2: Expected `int`, got `str` - at `\$\.ste",
        ),
    ],
)
def test_a_damaged_line_is_an_error_that_names_it(tmp_path, line, problem):
    append(str(tmp_path), START)
    with (tmp_path / "segments.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(CheckpointError, match=problem):
        read_history(str(tmp_path))


def test_keys_that_a_later_version_adds_are_skipped(tmp_path):
    append(str(tmp_path), START)
    path = tmp_path / "segments.jsonl"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"weather": "fair"}) + "\n")
    assert read_history(str(tmp_path)).starts == [START]


def test_of_several_runs_the_last_one_that_began_before_a_step_trained_it():
    first, second, back = START, replace(START, step=20), replace(START, step=10)
    history = History([first, second, back])
    assert [start_of(history, step, "run") for step in (1, 10, 11, 20, 30)] == [first, first, back, back, back]


@pytest.mark.parametrize(
    ("starts", "step", "error", "problem"),
    [
        ([START], 0, OptionError, r"step 0 does not exist: the first step of training is 1"),
        ([], 3, CheckpointError, r"run has no segments\.jsonl, so no step can be traced\. .* give the --workdir of a"),
        ([replace(START, step=9)], 9, OptionError, r"step 9 is before the history of run, which begins after step 9"),
        ([replace(START, input=None)], 9, CheckpointError, r"Only inputs made by train_dataset can be traced"),
    ],
)
def test_a_step_that_cannot_be_traced_is_an_error_that_says_why(starts, step, error, problem):
    with pytest.raises(error, match=problem):
        start_of(History(starts), step, "run")
