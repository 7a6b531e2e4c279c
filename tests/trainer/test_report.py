"""The report of runs: every number is that of the files, and what happened is marked where it happened."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import optax
import pytest

from pipeline.errors import OptionError
from trainer import report
from trainer.callbacks import Callback
from trainer.config import TrainerConfig
from trainer.history.segments import End, read_history
from trainer.pages.run_files import names_of, read_run
from trainer.pages.run_tables import differing, results
from trainer.report import run_page
from trainer.trainer import Trainer


class Failing(Callback):
    def on_loop_end(self, end):
        if end.step == 16:
            raise ValueError("the disk is on fire")


@pytest.fixture(scope="module")
def runs(dense_task, vector_input, tmp_path_factory):
    """Two work directories. The first run ended with an error after step 16 and resumed from step 10; the second one
    was never interrupted and has another learning rate and seed. Do not change them."""
    directory = tmp_path_factory.mktemp("runs")
    common = {"global_batch_size": 16, "iterations_per_loop": 2, "checkpoint_every_steps": 10, "log_every": 5}
    config = TrainerConfig(workdir=str(directory / "a/run"), **common)
    with pytest.raises(ValueError, match="on fire"):
        Trainer(dense_task, config, callbacks=[Failing()]).train(vector_input, max_steps=20)
    trainer = Trainer(dense_task, config)
    trainer.train(vector_input, max_steps=20)
    trainer.evaluate(vector_input)
    other = replace(config, workdir=str(directory / "b/run"), seed=3)
    Trainer(replace(dense_task, optimizer=optax.adam(1e-3)), other).train(vector_input, max_steps=20)
    return config.workdir, other.workdir


def lines_of(workdir, name):
    return [json.loads(line) for line in Path(workdir, name, "metrics.jsonl").read_text().splitlines()]


def cells_of(table):
    return {row[0]: row[1:] for row in table.rows}


def sections_of(page):
    return {section.title: section.blocks for section in page.sections}


def test_every_scalar_is_that_of_metrics_jsonl(runs):
    run, lines = read_run(runs[0], "a"), lines_of(runs[0], "train")
    for name in ("loss", "accuracy", "grad_norm"):
        column = run.train.columns[name]
        assert column.steps.tolist() == [line["step"] for line in lines]
        assert column.values.tolist() == [line[name] for line in lines]
    (evaluated,) = lines_of(runs[0], "eval")
    assert run.evaluations["evaluation"].columns["loss"].last == evaluated["loss"]


def test_the_results_are_those_of_the_files(runs):
    told = cells_of(results([read_run(workdir, workdir) for workdir in runs]))
    losses = [lines_of(workdir, "train")[-1]["loss"] for workdir in runs]
    assert [float(text) for text in told["loss, training"]] == pytest.approx(losses, rel=1e-4)
    assert [str(value) for value in told["last step"]] == ["20", "20"]
    assert [str(value) for value in told["restarts"]] == ["1", "0"]
    assert [str(value) for value in told["state"]] == ["finished", "finished"]


def test_a_restart_is_marked_where_it_was_and_the_failed_process_has_its_reason(runs):
    run = read_run(runs[0], "a")
    assert [(attempt.start.step, attempt.reached, attempt.how) for attempt in run.attempts] == [
        (0, 16, "stopped"),
        (10, 20, "finished"),
    ]
    assert run.attempts[0].reason == "the disk is on fire"
    began = [attempt.began for attempt in run.attempts]
    assert began == sorted(began)
    assert list(run.checkpoints) == [10, 20]
    page = run_page([run])
    (over_steps, over_time, *_) = sections_of(page)["Loss"]
    for chart in (over_steps, over_time):
        assert "Triangles: checkpoints." in chart.note
    assert "the disk is on fire" in page.html()
    (processes,) = (block for block in sections_of(page)["Processes and checkpoints"] if block.title == "Processes")
    assert [row[1:3] for row in processes.rows] == [("0", "16"), ("10 (6 steps lost)", "20")]


def test_times_ascend_and_lie_between_start_and_end(runs):
    run = read_run(runs[1], "b")
    times = run.train.times
    assert times.steps.tolist() == list(range(1, 21))
    (start,) = run.attempts
    ends = [line for line in read_history(runs[1]).lines if isinstance(line, End)]
    until = datetime.fromisoformat(ends[0].time).replace(tzinfo=UTC).timestamp()
    assert (np.diff(times.values) >= 0).all()
    assert start.began <= times.values[0] <= times.values[-1] <= until + 1


def test_only_settings_that_differ_between_two_runs_are_listed(runs):
    told = cells_of(differing([read_run(workdir, workdir) for workdir in runs]))
    assert [str(value) for value in told["seed"]] == ["0", "3"]
    assert "global_batch_size" not in told
    page = run_page([read_run(workdir, name) for workdir, name in zip(runs, "ab", strict=True)])
    assert page.title == "2 training runs: a, b"


def test_without_a_history_the_page_says_so(runs, tmp_path):
    copy = shutil.copytree(runs[0], tmp_path / "old")
    (copy / "segments.jsonl").unlink()
    assert (
        "has no segments.jsonl: an older version of infeed trained there"
        in run_page([read_run(str(copy), "old")]).html()
    )


def test_a_run_of_an_older_version_is_shown_over_steps_only_and_the_page_says_so(runs, tmp_path):
    copy = shutil.copytree(runs[1], tmp_path / "old")
    for name in ("train", "eval"):
        if (file := copy / name / "metrics.jsonl").exists():
            lines = [{key: value for key, value in line.items() if key != "time"} for line in lines_of(copy, name)]
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = run_page([read_run(str(copy), "old")])
    assert [chart.title for chart in sections_of(page)["Loss"]] == ["loss, over steps"]
    assert "has steps of an older version of infeed, whose metrics.jsonl has no times." in page.html()
    assert "whose metrics.jsonl has no times" not in run_page([read_run(runs[1], "b")]).html()


def test_values_that_are_not_finite_are_named_and_names_are_escaped(runs, tmp_path):
    copy = shutil.copytree(runs[1], tmp_path / "broken")
    file = copy / "train/metrics.jsonl"
    lines = [line | {"<b>odd": 1.0} for line in lines_of(runs[1], "train")]
    lines[6]["loss"] = "NaN"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    html = run_page([read_run(str(copy), "broken")]).html()
    assert "training: 1 value is not finite, at step 7." in html
    assert "&lt;b&gt;odd" in html
    assert "<b>" not in html


def test_the_command_prints_a_table_or_writes_a_page_also_in_a_bucket(runs, tmp_path, capsys, bucket, gcs_server):
    report.main([*runs])
    assert "loss, training" in capsys.readouterr().out
    report.main([runs[0], f"--html={tmp_path}/page.html"])
    assert capsys.readouterr().out.startswith(f"{tmp_path}/page.html: ")
    for file in Path(runs[0]).rglob("*"):
        if file.is_file():
            name = f"run/{file.relative_to(runs[0])}"
            gcs_server.write(bucket.removeprefix("gs://"), name, file.read_bytes())
    report.main([f"{bucket}/run", f"--html={bucket}/page.html"])
    page = gcs_server.read(bucket.removeprefix("gs://"), "page.html").decode()
    assert page.count("<svg") == (tmp_path / "page.html").read_text().count("<svg")


@pytest.mark.parametrize(
    ("workdirs", "message"),
    [
        (["{empty}"], r"has no training: neither segments\.jsonl nor train/metrics\.jsonl nor checkpoints"),
        (["{empty}/nowhere"], r"nowhere is not a directory\. Give the --workdir of a training"),
        (["{a}", "{a}/"], r"is given twice\. Give each work directory once"),
        (["{empty}/nowhere", "--html={empty}"], r"is a directory\. Give the name of a file in it"),
        (["{a}"] * 17, r"17 work directories are given\. Give at most 16"),
    ],
)
def test_bad_input_is_one_line(runs, tmp_path, workdirs, message):
    with pytest.raises(OptionError, match=message):
        report.main([each.format(empty=tmp_path, a=runs[0]) for each in workdirs])


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["/r/a/1", "/r/b/1"], ["a", "b"]),
        (["/r/a", "/r/b"], ["a", "b"]),
        (["/r/a/x", "/r/b/y"], ["x", "y"]),
        (["gs://k/a", "gs://k/b"], ["a", "b"]),
    ],
)
def test_runs_are_named_by_what_tells_their_paths_apart(paths, names):
    assert names_of(paths) == names
