"""The page about runs: how processes ended, where marks and gaps are, and that a page of many runs stays small."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from run_directories import KILLED_AND_PREEMPTED, NOON, at, start

from trainer.events.metrics_file import MetricsFile
from trainer.events.metrics_lines import Column
from trainer.history.segments import End, History
from trainer.pages import run_charts
from trainer.pages.run_charts import charts
from trainer.pages.run_files import Clock, attempts_of, read_run
from trainer.pages.run_tables import bad_records, differing
from trainer.report import run_page


def chart(page, title):
    return next(block for section in page.sections for block in section.blocks if block.title == title)


NO_TIMES = Column(np.array([], np.int64), np.array([]))


@pytest.mark.parametrize(
    ("reason", "how"),
    [
        ("finished", "finished"),
        ("SIGTERM on host 0 of 1", "preempted"),
        ("preempted: SIGTERM; all progress is saved", "preempted"),
        ("preempted: SIGINT; step 7 is saved", "interrupted"),
        ("SIGINT on host 0 of 1", "interrupted"),
        ("max_time=1h is over", "stopped"),
        ("the loss is NaN", "stopped"),
    ],
)
def test_how_a_process_ended_follows_from_its_reason(reason, how):
    (attempt,) = attempts_of(History([start(0, 0), End(5, at(9), reason)]), NO_TIMES)
    assert (attempt.how, attempt.reached, attempt.ended) == (how, 5, NOON + 9)


def test_a_process_without_an_end_was_killed_if_another_followed():
    times = Column(np.array([30, 31, 60]), NOON + np.array([-40, 1, 20.5]))
    found = list(attempts_of(History([start(30, 0), start(60, 100)]), times))
    assert [(each.start.step, each.reached, each.how) for each in found] == [
        (30, 60, "killed"),
        (60, 60, "no end recorded"),
    ]
    assert [each.ended for each in found] == [NOON + 20.5, None]


def test_restarts_are_marked_at_their_steps_and_times_and_said_in_words(make_run):
    page = run_page([make_run("a")])
    over_steps, over_time = chart(page, "loss, over steps"), chart(page, "loss, over time")
    assert ">0.01<" in over_steps.svg  # from 1 to 0.0033: a logarithmic axis
    assert over_steps.alt.endswith(", resumed after a preemption at 100, resumed after being killed at 200")
    assert over_steps.note.startswith(
        "Dashed lines: resumed after a preemption. Dotted lines: resumed after being killed."
    )
    marks = dict(re.findall(r"(preempted|killed|resumed) at ([\d.]+(?:, [\d.]+)*)", over_time.alt))
    assert marks["preempted"] == "1"  # minutes
    assert 5.4 < float(marks["killed"]) < 6
    assert marks["resumed"] == "5, 10"
    (processes,) = [block for block in page.sections[5].blocks if block.title == "Processes"]
    assert [row[1:3] for row in processes.rows] == [("0", "100"), ("100", "220"), ("200 (20 steps lost)", "300")]


def test_over_time_the_line_has_a_gap_wherever_nothing_was_trained(make_run):
    run = make_run("a")
    clock = Clock.of_runs([run])
    assert clock.unit == "minutes"
    column = run.train.columns["loss"]
    x = clock.of(run, run.train.times.at(column.steps))
    parts = clock.parts(run, x, column.values)
    assert [len(values) for _, values in parts] == [100, 100, 100]
    drawn = max(re.findall(r'd="([^"]*)"', chart(run_page([run]), "loss, over time").svg), key=len)
    assert drawn.count("M") == 3
    assert [(round(times[0]), round(times[-1])) for times, _ in parts] == [(0, 1), (5, 6), (10, 11)]


def test_steps_that_are_reported_together_are_spread_over_the_time_since_the_report_before(tmp_path):
    metrics = MetricsFile(str(tmp_path / "train"), 0, clock=lambda: NOON + 10.0 * (1 + (step - 1) // 20))
    for step in range(1, 101):
        metrics.scalars(step, {"loss": 1 + step % 2})
    metrics.close()
    (raw, _) = paths(chart(run_page([read_run(str(tmp_path), "a")]), "loss, over time"))
    assert len(raw) == 100
    assert np.diff(raw) == pytest.approx(np.full(99, np.ptp(raw) / 99), rel=1e-3)


def paths(of):
    """The x of the points of each line of a chart, those of a trend after those of its values."""
    drawn = re.findall(r'<path d="([^"]*)" clip-path[^>]* stroke: var\(--series-0\)', of.svg)
    return [[float(x) for x in re.findall(r"[ML] ([\d.]+)", path)] for path in drawn]


def test_over_noisy_values_lies_their_moving_mean_without_a_lag(make_run):
    rising = run_charts._trend([(np.arange(600.0), np.arange(600) + 50.0 * (-1) ** np.arange(600))])
    assert rising is not None
    assert abs(rising[1] - rising[0])[20:-20].max() < 10
    page = run_page([make_run("a")])
    assert len(paths(chart(page, "loss, over steps"))) == 4  # with the marks of two restarts
    assert "Thick lines are moving means, thin lines the values themselves." in chart(page, "loss, over steps").note


def test_a_trend_leaves_out_what_is_not_finite_and_has_a_gap_where_nothing_is():
    values = np.ones(2_000)
    values[[7, 8]], values[100:110] = (np.nan, np.inf), np.nan
    (_, means) = run_charts._trend([(np.arange(2_000.0), values)])
    assert np.flatnonzero(np.isnan(means)).tolist() == [10]
    assert np.nanmax(abs(means - 1)) < 1e-9


def test_no_chart_of_an_uninterrupted_run_is_shown_twice(make_run):
    speeds = {"speed/examples_per_second": 64.0, "speed/steps_per_second": 1.0, "speed/mfu": 0.1}
    whole = (start(0, 0), End(300, at(660), "finished"))
    page = run_page([make_run("a", whole, accuracy=0.5, **speeds)])
    charts_of = {section.title: [block.title for block in section.blocks] for section in page.sections[1:5]}
    assert charts_of["Loss"] == ["loss, over steps", "loss, over time"]
    assert charts_of["Metrics"] == ["accuracy, over steps"]
    assert charts_of["Speed"] == ["examples per second, over time", "share of time spent waiting for input, over time"]
    (speed,) = [
        section for section in run_page([make_run("b", **speeds), make_run("c")]).sections if section.title == "Speed"
    ]
    assert [block.title for block in speed.blocks] == [
        f"{what}, over time" for what in ("examples per second", "steps per second", "share of the devices' peak (MFU)")
    ] + ["share of time spent waiting for input, over time"]


def test_bad_records_the_command_and_the_speed_are_on_the_page(make_run):
    run = make_run("a")
    assert bad_records(run).rows == [(7, "its JPEG is truncated")]
    html = run_page([run]).html()
    assert "its JPEG is truncated" in html
    assert "cd /home/me\npython -m trainer digits --data-dir d --learning-rate=0.1 --max-steps 300" in html
    assert "share of time spent waiting for input, over time" in html


def test_options_versions_and_settings_that_differ_are_listed_and_no_others(make_run):
    runs = [make_run("a"), make_run("b", [start(0, 0, "0.2", settings={"max_steps": 400, "seed": 0})])]
    assert [tuple(row) for row in differing(runs).rows] == [
        ("max_steps", "300", "400"),
        ("--learning-rate", "0.1", "0.2"),
    ]
    over_steps = chart(run_page(runs), "loss, training, over steps")
    assert "a, from 1 to 0.003333" in over_steps.alt
    assert "b, from 1 to 0.003333" in over_steps.alt


def test_what_changed_at_a_restart_is_listed_with_the_process(make_run):
    changed = start(200, 600, versions={"jax": "0.12"}, settings={"max_steps": 500, "seed": 0})
    page = run_page([make_run("a", (*KILLED_AND_PREEMPTED[:3], changed))])
    assert "max_steps 300 -&gt; 500; jax &#39;0.10&#39; -&gt; &#39;0.12&#39;" in page.html()


def test_metrics_that_would_make_the_page_too_large_are_named(make_run, monkeypatch):
    run = make_run("a", **{f"metric{number}": number for number in range(4)})
    wanted = {"Loss": ["loss"], "Metrics": [f"metric{number}" for number in range(4)]}
    for limit, value in (("MOST_LINES", 7), ("MOST_CHARTS", 6)):
        with monkeypatch.context() as limited:
            limited.setattr(run_charts, limit, value)
            shown = charts([run], wanted, Clock("minutes"))
        assert [block.title for block in shown["Loss"]] == ["loss, over steps", "loss, over time"]
        assert [block.title for block in shown["Metrics"][:-1]] == [
            f"metric{number}, over {what}" for number in range(2) for what in ("steps", "time")
        ]
        assert shown["Metrics"][-1].text == "Not shown, because the page would be too large: metric2, metric3."


def test_the_command_needs_neither_jax_nor_tensorflow(make_run, tmp_path):
    make_run("a")
    program = """
import sys
sys.modules.update(dict.fromkeys(("jax", "tensorflow", "tensorboard", "orbax")))
from trainer import report
report.main([sys.argv[1], f"--html={sys.argv[1]}/page.html"])
report.main([sys.argv[1]])
"""
    command = [sys.executable, "-c", program, str(tmp_path / "a")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^preemptions +1 *$", done.stdout, re.MULTILINE)
    assert (tmp_path / "a/page.html").stat().st_size < 5e6


def test_a_damaged_result_is_one_line_that_names_the_file(make_run, tmp_path):
    make_run("a")
    (tmp_path / "a/train_result.json").write_text(json.dumps({"goodput": 0.5})[:-1])
    with pytest.raises(Exception, match=r"a/train_result\.json is not JSON: .* Remove it: "):
        read_run(str(tmp_path / "a"), "a")
