"""The helper that ends a process in which code in C holds Python's lock, and spares one that is suspended."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainer.cluster import guard

ROOT = Path(__file__).parents[3]
PROGRAM = """
import ctypes, os, signal, sys, time
from trainer.cluster.guard import GUARD, RESTS
GUARD.start()
GUARD.start()  # it is there
GUARD.tell("1 testing")
print("told", flush=True)
how = sys.argv[1]
if how == "lock":
    ctypes.PyDLL(None).sleep(60)
elif how == "suspended":
    os.kill(os.getpid(), signal.SIGSTOP)
elif how == "rests":
    GUARD.tell(RESTS)
    time.sleep(14)
elif how == "unread":  # nobody reads stderr, which is full
    os.dup2(os.pipe()[1], 2)
    GUARD._owner = 0
    GUARD.start()
    GUARD.tell("1 testing")
    os.set_blocking(2, False)
    try:
        while True:
            os.write(2, bytes(1 << 16))
    except BlockingIOError:
        os.set_blocking(2, True)
    ctypes.PyDLL(None).sleep(60)
elif how == "frozen":  # its helper cannot answer
    pid = os.popen(f"pgrep -f 'guard.py {os.getpid()}$'").read().split()[0]
    os.kill(int(pid), signal.SIGSTOP)
elif how == "forked":  # a child that outlives its parent
    if child := os.fork():
        print(child, flush=True)
    else:
        GUARD.tell("1 not its own")
        time.sleep(60)
"""


@pytest.fixture
def started(tmp_path):
    """started(how) -> the process, once it has told its helper something, and when."""
    processes = []

    def start(how):
        with (tmp_path / how).open("w") as printed:
            process = subprocess.Popen([sys.executable, "-c", PROGRAM, how], cwd=ROOT, stdout=printed, stderr=printed)
        processes.append(process)
        while not (tmp_path / how).read_text().startswith("told\n"):
            time.sleep(0.05)
        return process, time.monotonic()

    yield start
    for process in processes:
        process.kill()
        process.wait()


def guards_of(pid):
    """The helpers of a process that are running."""
    command = ["pgrep", "-f", f"guard.py {pid}$"]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.split()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="there is no guard")
def test_a_process_that_runs_no_python_is_killed_and_one_that_rests_or_is_suspended_is_not(started, tmp_path):
    runs = {how: started(how) for how in ("lock", "unread", "frozen", "suspended", "rests")}
    lock, begun = runs["lock"]
    assert guards_of(lock.pid)
    assert lock.wait(60) == -signal.SIGKILL
    assert 10.0 < time.monotonic() - begun < 20.0
    assert (tmp_path / "lock").read_text() == (
        f"told\nerror: process {lock.pid} has given no sign for 1 s: code in C holds Python's lock, or nobody "
        "reads what it prints. It was last testing. It is killed in 10 s; the same command resumes from the last "
        "checkpoint.\n"
    )
    assert runs["unread"][0].wait(60) == -signal.SIGKILL
    assert runs["frozen"][0].wait(60) == 0
    suspended, _ = runs["suspended"]
    time.sleep(max(0.0, begun + 14.0 - time.monotonic()))
    assert suspended.poll() is None
    suspended.send_signal(signal.SIGCONT)
    for how in ("suspended", "rests"):
        assert runs[how][0].wait(60) == 0
        assert (tmp_path / how).read_text() == "told\n"
    for process, _ in runs.values():
        assert not guards_of(process.pid)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="there is no guard")
def test_the_helper_ends_with_its_process_even_if_a_child_of_that_goes_on(started, tmp_path):
    process, _ = started("forked")
    assert process.wait(20) == 0
    stop = time.monotonic() + 20
    while guards_of(process.pid):
        assert time.monotonic() < stop
        time.sleep(0.1)
    os.kill(int((tmp_path / "forked").read_text().split()[1]), signal.SIGKILL)


def test_a_program_without_an_interpreter_trains_without_a_guard(monkeypatch):
    monkeypatch.setattr(guard.sys, "executable", "/nowhere/python")
    lonely = guard.Guard()
    lonely.start()
    lonely.tell("1 testing")
