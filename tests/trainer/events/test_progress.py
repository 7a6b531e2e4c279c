"""The progress line: plain lines now and then, or one live line on a terminal."""

import io
import logging

from trainer.events.progress import ProgressLine


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_log_file_gets_a_plain_line_each_time_log_every_is_passed(caplog):
    clock, stream = Clock(), io.StringIO()
    with caplog.at_level(logging.INFO, "trainer"):
        line = ProgressLine(0, 50, batch=32, log_every=20, stream=stream, clock=clock)
        for step in (7, 14, 21, 28, 35, 42, 49, 50):
            clock.now = step / 10
            line.update(step, loss=0.5, wait_seconds=step / 40)
        line.close()
    assert caplog.messages == [
        "step 21/50: loss 0.5, 10 steps/s, 320 examples/s, input wait 25%, 3 s left",
        "step 42/50: loss 0.5, 10 steps/s, 320 examples/s, input wait 25%, 1 s left",
        "step 50/50: loss 0.5, 10 steps/s, 320 examples/s, input wait 25%, 0 s left",
    ]
    assert stream.getvalue() == ""


def test_a_terminal_shows_steps_speed_and_loss_in_place(caplog, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    clock, stream = Clock(), Terminal()
    with caplog.at_level(logging.INFO, "trainer"):
        line = ProgressLine(10, 50, batch=32, log_every=20, stream=stream, clock=clock)
        clock.now = 4.0
        line.update(50, loss=0.25, wait_seconds=1.0)
        line.close()
    assert caplog.messages == []
    shown = stream.getvalue()
    assert "step 50/50" in shown
    assert "loss 0.25, 10 steps/s, 320 examples/s, input wait 25%" in shown
