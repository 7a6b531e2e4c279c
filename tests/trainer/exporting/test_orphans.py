"""The process that verifies an export does not outlive the process that started it."""

import os
import time
from pathlib import Path

import pytest

STUCK = """
import sys, time
from trainer.exporting.verification import served

class Stuck:
    def __reduce__(self):
        return time.sleep, (60,)

served(sys.argv[1], sys.argv[1], (Stuck(), (1,)))
"""


def child_of(pid):
    """The process that serves; None while there is none."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    serving = [int(each) for each in found if b"serving_process" in Path(f"/proc/{each}/cmdline").read_bytes()]
    return serving[0] if serving else None


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_for(condition, seconds):
    stop = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < stop:
        time.sleep(0.02)
    return found


@pytest.mark.parametrize("late", [0.0, 1.5], ids=["while it starts", "while it works"])
def test_a_killed_export_leaves_no_process(fork_server, tmp_path, late):
    parent = fork_server.start(["-c", STUCK, str(tmp_path)], tmp_path / "printed")
    serving = wait_for(lambda: child_of(parent.pid), 60)
    assert serving, parent.printed
    time.sleep(late)
    assert is_running(serving)
    parent.kill()
    parent.wait()
    try:
        assert wait_for(lambda: not is_running(serving), 5)
    finally:
        if is_running(serving):
            os.kill(serving, 9)
