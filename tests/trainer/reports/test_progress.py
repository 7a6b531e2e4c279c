"""The progress line: plain lines now and then, or one live line on a terminal."""

import io
import logging
import os
import pty
import re
import sys
import types
from dataclasses import replace

import pytest

from trainer.reports.progress import ProgressLine, RecordsLine, Speed, StepSize


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def terminal(monkeypatch):
    """A real one of 100 columns: (a stream that writes to it, what it got as soon as that is `lines` lines)."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")  # rich asks the process's own terminal alone
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen, os.fdopen(theirs, "w") as stream:

        def shown(lines):
            text = ""
            while text.count("\n") < lines:  # a terminal delivers in parts
                text += screen.read(65536).decode()
            return text

        yield stream, shown


def test_a_log_file_gets_a_plain_line_each_time_log_every_is_passed(caplog):
    clock, stream = Clock(), io.StringIO()
    with caplog.at_level(logging.INFO, "trainer"):
        line = ProgressLine(0, 50, size=StepSize(32), log_every=20, stream=stream, clock=clock)
        for step in (7, 14, 21, 28, 35, 42, 49, 50):
            clock.now = step / 10
            line.update(step, loss=0.5, wait_seconds=step / 40)
        line.close()
    assert caplog.messages == [
        "step 21/50: loss 0.5, 0:00:03 left, 10 steps/s, 320 examples/s, input wait 25%",
        "step 42/50: loss 0.5, 0:00:01 left, 10 steps/s, 320 examples/s, input wait 25%",
        "step 50/50: loss 0.5, 0:00:00 left, 10 steps/s, 320 examples/s, input wait 25%",
    ]
    assert stream.getvalue() == ""


def test_a_terminal_shows_one_line_in_place_and_what_is_logged_above_it(terminal, caplog):
    stream, shown = terminal
    clock, handler = Clock(), logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    try:
        line = ProgressLine(10, 50000, size=StepSize(32), log_every=20, stream=stream, clock=clock)
        clock.now = 2.0
        line.update(30, loss=0.25, wait_seconds=0.5)
        logging.getLogger("trainer").warning("a bad record")
        clock.now = 4.0
        line.update(50, loss=0.125, wait_seconds=1.0)
        line.close()
    finally:
        logging.getLogger().removeHandler(handler)
    assert handler.stream is stream
    seen = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", shown(lines=2))  # without moves
    above, last, after = (each.strip("\r").rpartition("\r")[2] for each in seen.split("\n"))
    assert above == "a bad record"
    assert (
        last
        == "step 50/50000 (0%): loss 0.125, 1:23:15 left, 10 steps/s, 320 examples/s, input wait 25%"
    )
    assert after == ""


def test_a_command_that_a_notebook_runs_logs_plain_lines_on_its_pseudo_terminal(
    terminal, caplog, monkeypatch
):
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    stream, _ = terminal
    with caplog.at_level(logging.INFO, "trainer"):
        line = ProgressLine(0, 10, size=StepSize(32), log_every=10, stream=stream, clock=Clock())
        line.update(10, loss=0.5, wait_seconds=0.0)
        line.close()
    assert [message[:10] for message in caplog.messages] == ["step 10/10"]


def test_a_notebook_shows_one_line_which_is_replaced_in_place_and_not_more_than_twice_a_second(
    monkeypatch, caplog
):
    displayed, clock = [], Clock()

    def display(data, *, raw, display_id, update):
        displayed.append((display_id, update, data["text/plain"]))

    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    with caplog.at_level(logging.INFO, "trainer"):
        line = ProgressLine(
            0, 1000, size=StepSize(32), log_every=20, stream=io.StringIO(), clock=clock
        )
        for step in range(1, 1001):
            clock.now = step / 500
            line.update(step, loss=0.5, wait_seconds=0.0)
        line.close()
    assert caplog.messages == []
    assert [update for _, update, _ in displayed] == [False] + [True] * (len(displayed) - 1)
    assert len({display_id for display_id, _, _ in displayed}) == 1
    assert 3 <= len(displayed) <= 6
    assert displayed[-1][2].startswith("step 1000/1000 (100%): loss 0.5, 0:00:00 left, 500 steps/s")


def test_tflops_and_the_share_of_the_peak_follow_from_the_size_of_a_step():
    speed = Speed.of(50, StepSize(32, flops=3e12, peak_tflops=400), seconds=5, wait_seconds=1)
    assert speed == Speed(10, 320, 0.2, tflops_per_second=30, mfu=0.075)
    assert str(speed) == "10 steps/s, 320 examples/s, input wait 20%, MFU 7.5%"
    assert str(Speed(71_960.4, 71_960.4, 0)) == "71,960 steps/s, 71,960 examples/s, input wait 0%"
    assert speed.scalars() == {
        "speed/steps_per_second": 10,
        "speed/examples_per_second": 320,
        "speed/input_wait": 0.2,
        "speed/tflops_per_second": 30,
        "speed/mfu": 0.075,
    }


def test_tflops_and_mfu_are_omitted_if_flops_or_peak_are_unknown():
    neither = Speed.of(50, StepSize(32), seconds=5, wait_seconds=1)
    assert (neither.tflops_per_second, neither.mfu) == (None, None)
    assert [*neither.scalars()] == [
        "speed/steps_per_second",
        "speed/examples_per_second",
        "speed/input_wait",
    ]
    assert Speed.of(50, StepSize(32, peak_tflops=400), seconds=5, wait_seconds=1).mfu is None
    assert Speed.of(50, StepSize(32, flops=3e12), seconds=5, wait_seconds=1).mfu is None


def test_records_are_counted_in_a_log_line_every_30_seconds(caplog):
    clock = Clock()
    with caplog.at_level(logging.INFO, "trainer"):
        with RecordsLine("evaluated", 10_000, stream=io.StringIO(), clock=clock) as line:
            for second in (10, 29, 30, 31, 60):
                clock.now = second
                line.add(1000)
        with RecordsLine("predicted", None, stream=io.StringIO(), clock=clock) as line:
            clock.now += 40
            line.add(1000)
        with RecordsLine("evaluated", None, shown=False, clock=clock) as line:
            clock.now += 40
            line.add(1000)
    assert caplog.messages == [
        "evaluated 3000/10000: 100 records/s, 0:01:10 left",
        "evaluated 5000/10000: 80 records/s, 0:01:02 left",
        "predicted 1000",
    ]


def test_records_are_counted_in_one_line_of_a_terminal(terminal):
    stream, shown = terminal
    clock = Clock()
    with RecordsLine("evaluated", 50, stream=stream, clock=clock) as line:
        for second in range(1, 6):
            clock.now = second
            line.add(10)
    got = shown(1)
    assert "evaluated 0/50 (0%): the first records" in got
    assert "evaluated 30/50 (60%): 10 records/s, 0:00:02 left" in got
    assert got.count("\n") == 1
    assert re.search(
        r"evaluated 50/50 \(100%\): 10 records/s, 0:00:00 left\S*\r?\n$",
        got.replace("\x1b[?25h", ""),
    ), got


def test_the_slowest_host_is_in_the_line_if_it_takes_more_than_a_tenth_of_its_time():
    measured = Speed(2.0, 16.0, 0.05)
    slow = replace(measured, slowest_host=3, slowest_share=0.31)
    assert str(slow) == f"{measured}, host 3 is slowest (31% input wait and own work)"
    assert str(replace(slow, slowest_share=0.1)) == str(measured)
    told = {name: value for name, value in slow.scalars().items() if name not in measured.scalars()}
    assert told == {"speed/slowest_host": 3, "speed/slowest_share": 0.31}
