"""infeed report: what it prints of a training is what its files say, and a damaged file is one line."""

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.datasets import train_dataset
from pipeline.errors import InfeedError, OptionError
from pipeline.shards.typed_json import sealed
from trainer.callbacks import Callback
from trainer.checkpointing.listing import finished_steps
from trainer.checkpointing.owner import Ownership
from trainer.commands import report
from trainer.commands.report import read_report
from trainer.config import TrainerConfig
from trainer.reports.segments import BadRecords, End, Invocation, Start, append
from trainer.results import EvalResult
from trainer.trainer import Trainer

PROOF = {
    "step": 300,
    "records": 10,
    "num_records": 10,
    "labelled": 10,
    "masked": 0,
    "crc": 7,
    "expected_crc": 7,
}
PROOF |= {
    "name": None,
    "seconds": 0.5,
    "unseen": 0,
    "not_finite": {},
    "classes": "classes not compared",
    "proven": True,
    "data": "shards",
}
TRAINED = {"step": 300, "examples_per_second": 64.5, "steps_per_second": 2.5, "input_wait": 0.25}
TRAINED |= {"goodput": 0.5, "productive_seconds": 90.0, "wall_seconds": 180.0}


def start(step, **changes):
    command = Invocation("digits", ["--data-dir", "d"], "/home/me")
    settings = {"max_steps": 300, "keep_best": "accuracy", "keep_best_mode": "max"}
    told = {"settings": settings, "versions": {}, "devices": "8 x TPU v4, 2 processes"} | changes
    return Start(
        step, "2026-09-23T12:00:00+00:00", {}, {"fingerprint": "f"}, command=command, **told
    )


def end(step, reason):
    return End(step, "2026-09-23T12:00:00+00:00", reason)


PREEMPTED, KILLED = [start(0), end(100, "preempted: SIGTERM on host 1 of 2")], [start(100)]
BAD = BadRecords("f", {"7": "its JPEG is truncated"})
RUN = [*PREEMPTED, *KILLED, start(200), BAD, end(300, "finished")]


@pytest.fixture
def make_run(tmp_path):
    """make_run(): a work directory with what a run of 300 steps leaves behind, except checkpoints."""

    def make(lines=RUN, **files):
        for line in lines:
            append(str(tmp_path), line)
        steps = [
            {"step": step, "time": 1_790_164_800.0 + step, "loss": 1 / step}
            for step in range(1, 301)
        ]
        steps[99] |= {
            "speed/examples_per_second": 50.0,
            "speed/steps_per_second": 2.0,
            "speed/input_wait": 0.125,
        }
        texts = {
            "train/metrics.jsonl": "".join(json.dumps(line) + "\n" for line in steps),
            "eval/metrics.jsonl": '{"step": 300, "time": 1790165200.0, "accuracy": 0.75, "loss": 0.5}\n',
            "eval_test/metrics.jsonl": '{"step": 300, "accuracy": 0.5, "loss": "NaN"}\n',
            "eval_result.json": json.dumps({"accuracy": 0.75, "loss": 0.5, **PROOF}),
            "train_result.json": json.dumps(TRAINED),
            "evaluations.json": json.dumps(sealed({"300": {"accuracy": 0.75}})),
        } | files
        for name, text in texts.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        return str(tmp_path)

    return make


def printed(capsys, *arguments):
    report.main(list(arguments))
    return capsys.readouterr().out


def test_the_lines_answer_what_people_ask_of_a_training(make_run, capsys):
    workdir = make_run()
    title, *lines = printed(capsys, workdir).splitlines()
    assert title == workdir
    told = {line[:16].strip(): line[18:] for line in lines}
    assert told == {
        "state": "finished at step 300 of 300",
        "last report": "2026-09-23 12:05:00 UTC",
        "trained": "digits on 8 x TPU v4, 2 processes",
        "training": "loss 0.00333",
        "evaluation": "step 300: 10 of 10 records of shards, proven exact; classes not compared; accuracy 75 %, loss 0.5",
        "evaluation test": "step 300; accuracy 50 %, loss nan",
        "speed": "64.5 records/s, 2.5 steps/s",
        "input wait": "25 % of the time",
        "goodput": "50 %: 1 min 30 s of 3 min",
        "restarts": "2 (processes before: 1 preempted, 1 killed)",
        "bad records": "1 left out",
        "checkpoints": "none",
        "curves": f"tensorboard --logdir {workdir}",
        "all numbers": f"{workdir}/train/metrics.jsonl",
        "its records": f"infeed seen {workdir} --step 300",
    }


def test_records_that_are_also_in_another_split_are_told_beside_the_proof(make_run, capsys):
    proof = PROOF | {"copies": {"test": 0, "train": 3}}
    workdir = make_run(**{"eval_result.json": json.dumps(proof)})
    assert "records of shards, proven exact, 3 of them also in train; " in printed(capsys, workdir)
    result = EvalResult(1, {}, 2, 2, 0, 2, 3, 3, 1.0, copies={"test": 0, "train": 1})
    assert str(result).endswith("2 of 2 records, proven exact, 1 of them also in train")
    result.write(workdir)
    assert "proven exact, 1 of them also in train" in printed(capsys, workdir)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"masked": 2}, "shards, not proven: 2 bad records left out; classes"),
        ({"num_records": None}, "not proven: the input does not state which records are due; "),
        ({"not_finite": {"r2": "undefined"}}, "not compared; r2 is undefined; r2 nan"),
    ],
)
def test_what_is_not_proven_or_not_finite_has_its_reason(make_run, capsys, changes, text):
    proof = PROOF | {"proven": False, "r2": float("nan")} | changes
    assert text in printed(capsys, make_run(**{"eval_result.json": json.dumps(proof)}))


def test_json_has_the_same_as_one_object_with_plain_numbers(make_run, capsys):
    found = json.loads(printed(capsys, make_run(), "--json"), parse_constant=pytest.fail)
    expected = {
        "state": "finished",
        "step": 300,
        "max_steps": 300,
        "restarts": 2,
        "training": {"loss": 1 / 300},
        "input_wait_share": 0.25,
        "productive_seconds": 90.0,
        "wall_seconds": 180.0,
        "ends": {"preempted": 1, "killed": 1},
    }
    assert found.items() >= expected.items()
    of_test = {"step": 300, "metrics": {"accuracy": 0.5, "loss": None}}
    assert found["evaluations"]["eval_test"] == of_test
    proof = {"records": 10, "num_records": 10, "proven": True, "data": "shards"}
    assert found["proof"].items() >= proof.items()


def test_a_real_run_that_failed_and_resumed_is_that_of_its_files(
    dense_task, vector_input, tmp_path, capsys
):
    class Failing(Callback):
        def on_loop_end(self, end):
            if end.step == 16:
                raise ValueError("the disk is on fire")

    sizes = {
        "global_batch_size": 16,
        "iterations_per_loop": 2,
        "checkpoint_every_steps": 10,
        "log_every": 5,
    }
    config = TrainerConfig(workdir=str(tmp_path), keep_best="loss", **sizes)
    with pytest.raises(ValueError, match="on fire"):
        Trainer(dense_task, config, callbacks=[Failing()]).train(vector_input, max_steps=20)
    stopped = read_report(str(tmp_path))
    assert (stopped["state"], stopped["reason"], stopped["step"]) == (
        "stopped",
        "the disk is on fire",
        16,
    )
    Trainer(dense_task, config).train_and_evaluate(vector_input, vector_input, max_steps=20)
    found = read_report(str(tmp_path))
    lines = [
        json.loads(line) for line in (tmp_path / "train/metrics.jsonl").read_text().splitlines()
    ]
    assert found["training"] == {
        name: lines[-1][name] for name in ("accuracy", "grad_norm", "loss")
    }
    assert (found["state"], found["step"], found["ends"]) == ("finished", 20, {"stopped": 1})
    assert found["checkpoint_steps"] == finished_steps(str(tmp_path)) == [10, 20]
    # The loss falls, and a metric says itself what is best.
    assert "2, the newest of step 20, the best by loss of step 20" in printed(capsys, str(tmp_path))
    assert found["last_report_time"] >= datetime.now(UTC).date().isoformat()


@pytest.mark.parametrize("length", [{"max_epochs": 2}, {"max_steps": 12}, {"steps": 12}], ids=str)
def test_a_run_is_of_as_many_steps_as_its_call_says(length, dense_task, vectors, config, capsys):
    settings = config(global_batch_size=16, max_steps=2000)  # as recipes have
    trained = Trainer(dense_task, settings).train(train_dataset(vectors), **length)
    assert f"finished at step {trained.step} of {trained.step}" in printed(capsys, settings.workdir)


@pytest.mark.parametrize(
    ("lines", "state", "reason", "step"),
    [
        (PREEMPTED, "preempted", "SIGTERM on host 1 of 2", 100),
        ([start(0), end(7, "interrupted: SIGINT")], "interrupted", "SIGINT", 7),
        (
            [start(0), end(7, "early stopping: no better loss")],
            "stopped",
            "early stopping: no better loss",
            7,
        ),
        ([*PREEMPTED, *KILLED], "killed", "", 300),
        ([], "unknown", "there is no segments.jsonl", 300),
    ],
)
def test_the_state_is_how_the_newest_process_ended(make_run, lines, state, reason, step):
    found = read_report(make_run(lines))
    assert (found["state"], found["reason"], found["step"]) == (state, reason, step)


def test_speed_of_an_earlier_training_is_not_that_of_a_newer_one(make_run, capsys):
    found = read_report(make_run(RUN[:-1]))
    assert (found["examples_per_second"], found["input_wait_share"]) == (50.0, 0.125)
    assert found["wall_seconds"] is None


@pytest.mark.parametrize("state", ["running", "killed", "running or killed"])
def test_a_process_that_left_no_end_is_asked_for_if_it_is_on_this_machine(
    make_run, monkeypatch, state
):
    workdir = make_run(RUN[:-1], **{"_owner/runs": ""})
    with Ownership(workdir) as owner:
        owner.take()
        if state != "running":
            owner._unlock()  # as its end does
        if state == "running or killed":
            monkeypatch.setattr("trainer.checkpointing.owner._machine", lambda: "another")
        found = read_report(workdir)
    assert (found["state"], found["reason"]) == (
        state,
        f"process {os.getpid()} on {os.uname().nodename}",
    )


BAD_RECORD = {"kind": "bad records", "fingerprint": "f", "records": {"x": ""}}


@pytest.mark.parametrize(
    ("name", "page", "message"),
    [
        ("eval_result.json", {"accuracy": "high", **PROOF}, 'accuracy is "high": expected float'),
        ("eval_result.json", {**PROOF, "records": "10"}, 'records is "10": expected int'),
        ("eval_result.json", {"accuracy": 1.0}, "the key step is missing"),
        ("train_result.json", TRAINED | {"input_wait": "none"}, 'input_wait is "none"'),
        ("evaluations.json", {"300": {"accuracy": "0.75"}}, '["300"].accuracy is "0.75"'),
        ("eval/metrics.jsonl", {"step": 3, "loss": "low"}, "loss is 'low', not a number, in"),
        ("train/metrics.jsonl", {"step": 3, "loss": [1]}, "Expected "),
        ("segments.jsonl", vars(end("7", "")) | {"kind": "end"}, "Expected `int`, got `str`"),
        ("segments.jsonl", BAD_RECORD, "line 1: invalid literal"),
        ("segments.jsonl", {"kind": ["end"]}, "its kind is none of start, bad records, end"),
    ],
)
def test_a_text_where_a_number_belongs_is_one_line(make_run, name, page, message):
    workdir = make_run(**{name: json.dumps(page)})
    with pytest.raises(InfeedError, match=rf"{name}.*{re.escape(message)}") as raised:
        read_report(workdir)
    assert "\n" not in str(raised.value)
    assert "remove" in str(raised.value).lower()


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("", r"has no run: neither segments\.jsonl nor train/metrics\.jsonl nor checkpoints"),
        ("/nowhere", r"nowhere is not a directory\. Give the --workdir of a run"),
    ],
)
def test_a_place_without_a_training_is_one_line(tmp_path, place, message):
    with pytest.raises(OptionError, match=message):
        report.main([f"{tmp_path}{place}"])


def test_a_line_that_is_being_written_is_left_for_the_next_reader(make_run):
    workdir = make_run()
    with Path(workdir, "train/metrics.jsonl").open("a") as file:
        file.write('{"step": 301, "loss": 0.')
    assert read_report(workdir)["training"]["loss"] == 1 / 300


def test_a_work_directory_in_a_bucket_is_the_same(make_run, bucket, gcs_server):
    workdir = make_run()
    for file in filter(Path.is_file, Path(workdir).rglob("*")):
        gcs_server.write(
            bucket.removeprefix("gs://"), f"run/{file.relative_to(workdir)}", file.read_bytes()
        )
    assert str(read_report(f"{bucket}/run")) == str(
        read_report(workdir) | {"workdir": f"{bucket}/run"}
    )
