"""No test of this suite can hang: each ends within its bound, and says where it stood."""

import subprocess
import sys
from pathlib import Path

import pytest

SETTINGS = Path(__file__).parents[1] / "pyproject.toml"
BOUNDS = ["-o", "timeout=1", "-o", "faulthandler_timeout=3"]
WAITING = """
import threading

def test_that_hangs():
    threading.Event().wait(60)
"""
INSIDE_C = """
import ctypes

def test_that_hangs():
    mutex, c = ctypes.create_string_buffer(64), ctypes.PyDLL(None)  # PyDLL keeps the GIL
    c.pthread_mutex_lock(mutex)
    c.pthread_mutex_lock(mutex)  # for ever, whatever signal comes
"""


@pytest.mark.parametrize(
    ("program", "text"),
    [(WAITING, "Failed: Timeout (>1.0s)"), (INSIDE_C, "Timeout (0:00:03)!")],
    ids=["waiting", "inside C, with the GIL"],
)
def test_a_test_that_hangs_is_ended_and_named(tmp_path, program, text):
    (tmp_path / "test_hanging.py").write_text(program)
    command = [sys.executable, "-m", "pytest", "-c", str(SETTINGS), f"--rootdir={tmp_path}", *BOUNDS, str(tmp_path)]
    command += ["-p", "no:cacheprovider"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 1
    assert text in done.stdout + done.stderr
    assert "test_that_hangs" in done.stdout + done.stderr
