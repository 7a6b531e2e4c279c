"""The tables of a page about runs, each with all its cells: nothing is stale, mixed up, or known that is not."""

import json
from dataclasses import replace

import numpy as np
import pytest
from run_directories import KILLED_AND_PREEMPTED, at, start

from trainer.events.metrics_lines import Column
from trainer.history.segments import End, History
from trainer.pages.run_files import attempts_of, read_run
from trainer.pages.run_tables import differing, processes, results
from trainer.report import run_page

EVALUATED = {"accuracy": 0.75, "step": 300, "records": 10, "num_records": 10, "masked": 0, "proven": True, "crc": 7}
TRAINED = {"step": 300, "examples_per_second": 64.5, "goodput": 0.5, "productive_seconds": 90.0, "wall_seconds": 180.0}


@pytest.fixture
def told(make_run, tmp_path):
    """told(eval_result, train_result, lines) -> name -> value in the results of the run."""

    def tell(evaluated, trained, lines=KILLED_AND_PREEMPTED):
        make_run("a", lines)
        for name, result in (("eval", evaluated), ("train", trained)):
            (tmp_path / f"a/{name}_result.json").write_text(json.dumps(result))
        return dict(results([read_run(str(tmp_path / "a"), "a")]).rows)

    return tell


def test_every_result_is_shown(told):
    assert told(EVALUATED, TRAINED) == {
        "state": "finished",
        "last step": "300",
        "loss, training": "0.00333333",
        "accuracy, evaluation": "0.75",
        "evaluated step": "300",
        "evaluated records": "10",
        "records of the split": "10",
        "masked records": "0",
        "proven exact": "yes",
        "examples per second": "64.5",
        "share of time spent waiting for input": "0.3",
        "goodput": "0.5",
        "productive seconds": "90",
        "elapsed time, including pauses": "0:11:00",
        "restarts": "2",
        "preemptions": "1",
        "bad records left out": "1",
        "devices": "8 x TPU v4, 2 processes",
    }


@pytest.mark.parametrize("trained", [TRAINED | {"step": 200}, {"examples_per_second": 64.5, "goodput": 0.5}])
def test_speed_and_goodput_of_an_earlier_training_are_not_shown_as_the_newest(told, trained):
    rows = told(EVALUATED, trained, KILLED_AND_PREEMPTED[:-1])  # the last process has no end
    assert rows["state"] == "running, or killed (no end recorded)"
    assert not rows.keys() & {"examples per second", "goodput", "productive seconds"}


def test_an_evaluation_of_another_checkpoint_is_named_apart(told):
    rows = told(EVALUATED | {"checkpoint_path": "/other/run", "step": 7}, TRAINED)
    assert rows["accuracy, evaluation of /other/run step 7"] == "0.75"
    assert rows["proven exact, evaluation of /other/run step 7"] == "yes"
    assert not rows.keys() & {"accuracy, evaluation", "proven exact", "evaluated step"}


def test_without_a_history_nothing_is_counted_as_zero(told):
    rows = told(EVALUATED, TRAINED, ())
    assert rows["state"] == "not recorded"
    assert not rows.keys() & {"preemptions", "bad records left out", "devices"}


def test_every_process_is_a_row(make_run):
    table = processes(make_run("a"))
    assert [*table.columns] == ["began", "after step", "reached step", "ended", "how", "changed"]
    assert [tuple(row) for row in table.rows] == [
        ("2026-09-23 12:00:00", "0", "100", "2026-09-23 12:01:00", "preempted: SIGTERM on host 1 of 2", ""),
        ("2026-09-23 12:05:00", "100", "220", "2026-09-23 12:05:49", "killed", ""),
        ("2026-09-23 12:10:00", "200 (20 steps lost)", "300", "2026-09-23 12:11:00", "finished", ""),
    ]


def test_only_the_newest_100_processes_are_listed(make_run):
    many = [line for step in range(120) for line in (start(step, step), End(step + 1, at(step), "SIGTERM"))]
    table = processes(make_run("a", many))
    assert [table.rows[0][1], table.rows[-1][1]] == ["20", "119"]
    assert "Only the newest 100 of 120 are shown." in table.note


def test_a_killed_process_reached_the_checkpoint_that_the_next_one_began_with():
    first, second = replace(start(0, 0), run="a"), replace(start(200, 9), parent="a")
    untimed = Column(np.array([], np.int64), np.array([]))
    assert [attempt.reached for attempt in attempts_of(History([first, second]), untimed)] == [200, 200]
    assert [attempt.reached for attempt in attempts_of(History([first, replace(second, parent="b")]), untimed)] == [
        0,
        200,
    ]


def test_the_last_step_of_a_run_that_went_back_is_that_of_its_newest_process(make_run):
    back = [*KILLED_AND_PREEMPTED, start(100, 700), End(150, at(760), "finished")]
    run = make_run("a", back)
    assert run.attempts[-1].reached == 150
    assert replace(run, train=replace(run.train, columns={})).last_step == 150


def test_options_with_underscores_are_the_same_options(make_run):
    dashes, underscores = start(0, 0), start(0, 0)
    options = [option.replace("learning-rate", "learning_rate") for option in underscores.command.options]
    other = replace(underscores, command=replace(underscores.command, options=options))
    assert differing([make_run("a", [dashes]), make_run("b", [other])]).rows == []


def test_runs_without_a_history_are_listed_in_one_sentence(make_run):
    html = run_page([make_run("a", ()), make_run("b", ())]).html()
    assert html.count("no segments.jsonl") == 1
    assert "/b have no segments.jsonl: an older version of infeed trained there, or the file was not copied." in html
    assert "No recorded setting differs." in html
