"""segments.jsonl: written once per start, read back, and damaged."""

import json
from dataclasses import replace

import pytest

from pipeline.errors import CheckpointError, OptionError
from pipeline.shards.typed_json import sealed_line
from trainer.reports.seen_records import seen_batches
from trainer.reports.segments import (
    BadRecords,
    End,
    History,
    Invocation,
    Start,
    append,
    read_history,
    segment_of,
)

ORDER = {
    "num_records": 9,
    "batch": 2,
    "seed": 1,
    "block_records": 1,
    "block_starts": [[0, 1, 9]],
    "streams": 1,
}
ORDER |= {"window_records": 4, "epochs": "drop"}
SOURCE = {"name": "d", "fingerprint": "f", "first": 0, "stop": 9}
GIVEN = {
    "order": ORDER,
    "sources": [SOURCE],
    "on_error": "raise",
    "source_starts": [0, 9],
    "fingerprint": "f",
}
START = Start(
    step=0,
    time="2026-11-23T12:00:00+00:00",
    position={"epoch": 0, "records": 0},
    input={"order": {}, "sources": []},
    settings={"seed": 1},
    command=Invocation("digits", ["--seed", "1"], "/home"),
    versions={"jax": "1"},
    devices="1 x cpu, 1 process",
)


def test_appended_history_lines_are_read_back_in_order(tmp_path):
    lines = [
        START,
        BadRecords("data", {"7": "truncated"}),
        End(12, START.time, "finished"),
        replace(START, step=12),
    ]
    for line in lines:
        append(str(tmp_path), line)
    history = read_history(str(tmp_path))
    assert list(history.lines) == lines
    assert history.starts == [lines[0], lines[3]]
    assert (history.bad_records("data"), history.bad_records("other")) == ({7: "truncated"}, {})
    assert [(segment.start, segment.lines) for segment in history.segments] == [
        (START, lines[1:3]),
        (lines[3], []),
    ]


def test_a_work_directory_without_a_history_file_has_an_empty_history(tmp_path):
    assert read_history(str(tmp_path)) == History()


def test_history_lines_are_appended_to_one_object_of_a_bucket(bucket):
    for step in (0, 5):
        append(f"{bucket}/run", replace(START, step=step))
    assert [start.step for start in read_history(f"{bucket}/run").starts] == [0, 5]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", r"segments\.jsonl, line 2 is not JSON"),
        ("[]", r"line 2: it: expected object, got array\. The file is damaged: remove the line"),
        (
            '{"kind": "stop"}',
            r"line 2: its kind is none of start, bad records, end\. The file is damaged: remove the",
        ),
        (
            '{"kind": "end", "step": 1, "time": "noon", "reason": ""}',
            r"line 2: Invalid isoformat string: 'noon'\. The",
        ),
        (
            '{"kind": "end", "step": 1, "time": "2026-11-23", "reason": "", "\\ud800": 1}',
            r"line 2: 'utf-8' codec can't encode .* The file is damaged: remove the line",
        ),
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


def test_an_empty_file_is_damaged(tmp_path):
    (tmp_path / "segments.jsonl").touch()
    with pytest.raises(CheckpointError, match=r"segments\.jsonl is empty: it is damaged\. Remove"):
        read_history(str(tmp_path))


def test_empty_lines_are_skipped(tmp_path):
    append(str(tmp_path), START)
    with (tmp_path / "segments.jsonl").open("a") as file:
        file.write("\n \n")
    append(str(tmp_path), replace(START, step=3))
    assert [start.step for start in read_history(str(tmp_path)).starts] == [0, 3]


def test_unknown_keys_of_a_later_version_are_skipped(tmp_path):
    append(str(tmp_path), START)
    path = tmp_path / "segments.jsonl"
    fields = json.loads(path.read_text())
    del fields["checksum"]
    path.write_bytes(sealed_line(fields | {"weather": "fair"}))
    assert read_history(str(tmp_path)).starts == [START]


def test_a_line_of_an_earlier_version_has_no_checksum_and_a_changed_value_is_found_in_others(
    tmp_path,
):
    append(str(tmp_path), START)
    path = tmp_path / "segments.jsonl"
    fields = json.loads(path.read_text())
    path.write_text(
        json.dumps({key: value for key, value in fields.items() if key != "checksum"}) + "\n"
    )
    assert read_history(str(tmp_path)).starts == [START]
    path.write_text(json.dumps(fields | {"settings": {"seed": 2}}) + "\n")
    with pytest.raises(
        CheckpointError,
        match=r"line 1: its checksum is .* remove the line, and the rest can be used",
    ):
        read_history(str(tmp_path))


def runs(*segments):
    """A history of runs (name, first step, parent, last step or None)."""
    lines = []
    for name, first, parent, last in segments:
        lines.append(replace(START, step=first, run=name, parent=parent))
        if last is not None:
            lines.append(End(last, START.time, "finished"))
    return History(lines)


def trained_by(history, *steps):
    return [segment_of(history, step, "run").start.run for step in steps]


@pytest.mark.parametrize(
    ("segments", "trained"),
    [
        # c may be alive, so later steps are its own
        (
            [("a", 0, None, 20), ("b", 20, "a", None), ("c", 10, "a", None)],
            {1: "a", 10: "a", 11: "c", 20: "c", 30: "c"},
        ),
        # b went back and failed: its steps are its own, later ones stay with the run before
        (
            [("a", 0, None, 30), ("b", 10, "a", 12)],
            {10: "a", 11: "b", 12: "b", 13: "a", 30: "a"},
        ),
        # b saved nothing, so it is no ancestor of the model
        (
            [("a", 0, None, 30), ("b", 10, "a", None), ("c", 30, "a", None)],
            {11: "a", 25: "a", 31: "c"},
        ),
        # a new model has no ancestors
        ([("a", 0, None, 30), ("b", 0, None, 4)], {3: "b", 4: "b", 5: "a", 30: "a"}),
    ],
)
def test_a_step_belongs_to_the_run_that_trained_it_last(segments, trained):
    assert trained_by(runs(*segments), *trained) == [*trained.values()]


def test_without_names_of_parents_the_run_before_is_the_parent():
    history = runs(("", 0, None, 20), ("", 20, None, 35), ("", 30, None, None))
    firsts = [segment_of(history, step, "run").start.step for step in (20, 21, 30, 31)]
    assert firsts == [0, 20, 20, 30]


def test_a_run_that_was_killed_is_not_known_to_have_trained_what_the_model_did_not_keep():
    history = runs(("a", 0, None, None), ("b", 10, "a", 12))
    with pytest.raises(
        OptionError,
        match=r"step 13 was not trained: the last run in run ended at step 12 \(finished\)",
    ):
        segment_of(history, 13, "run")


def test_bad_records_are_those_of_the_run_that_met_them():
    given = {"fingerprint": "data"}
    first, bad = replace(START, input=given), BadRecords("data", {"7": "truncated"})
    history = History(
        [
            first,
            bad,
            BadRecords("other", {"8": "short"}),
            End(9, "", "finished"),
            replace(first, step=9),
        ]
    )
    assert [segment.bad_records for segment in history.segments] == [{7: "truncated"}, {}]


def traced(history, step):
    return list(seen_batches(history, range(step, step + 1), "run"))


@pytest.mark.parametrize(
    ("starts", "step", "error", "problem"),
    [
        ([START], 0, OptionError, r"step 0 does not exist: the first step of training is 1"),
        (
            [],
            3,
            CheckpointError,
            r"run has no segments\.jsonl, so no step can be traced\. .* give the --workdir of a",
        ),
        (
            [replace(START, step=9)],
            9,
            OptionError,
            r"step 9 is before the history of run, which begins after step 9",
        ),
        (
            [replace(START, input=None)],
            9,
            CheckpointError,
            r"Only inputs made by train_dataset can be traced",
        ),
        (
            [replace(START, input=GIVEN | {"order": ORDER | {"seed": None}})],
            9,
            CheckpointError,
            r"run/segments\.jsonl: the start after step 0 has no valid input \(TypeError\(.* remove",
        ),
        (
            [replace(START, input=GIVEN | {"sources": [SOURCE | {"split": 7}]})],
            9,
            CheckpointError,
            r"run/segments\.jsonl: the start after step 0 has no valid input \(ValidationError\(.*`int`.* remove",
        ),
        (
            [replace(START, input=GIVEN | {"sources": [SOURCE | {"stop": 5}]})],
            9,
            CheckpointError,
            r"no valid input \(ValueError\('its sources have another number of records'\)\)\. .* remove",
        ),
        (
            [replace(START, input={"order": {}})],
            9,
            CheckpointError,
            r"run/segments\.jsonl: the start after step 0 has no valid input \(KeyError\('num_records'\)\)\. .* remove",
        ),
    ],
)
def test_a_step_that_cannot_be_traced_is_an_error_that_says_why(starts, step, error, problem):
    with pytest.raises(error, match=problem):
        traced(History(starts), step)


def test_a_skipped_record_was_replaced_by_the_next_good_one_of_its_own_source():
    halves = [SOURCE | {"stop": 4}, SOURCE | {"stop": 5, "fingerprint": "g"}]
    start = replace(
        START, input=GIVEN | {"sources": halves, "source_starts": [0, 4, 9], "on_error": "skip"}
    )
    history = History([start, BadRecords("f", {"3": "truncated", "8": "truncated", "0": "short"})])
    seen = [batch for step in range(1, 5) for batch in traced(history, step)]
    pairs = {
        int(bad): int(good)
        for batch in seen
        for bad, good in zip(batch.replaced, batch.record_ids, strict=True)
    }
    pairs.pop(-1)
    assert pairs
    assert pairs.items() <= {3: 1, 8: 4, 0: 1}.items()
