"""Ctrl-C and SIGTERM as a call hears them, and how commands answer them outside of calls: partly in processes."""

import ast
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from trainer.hosts import exits as signals
from trainer.hosts.exits import WATCHER

ROOT = Path(__file__).parents[3]
COMMANDS = [
    path
    for package in ("pipeline", "trainer", "converters")
    for path in (ROOT / package).rglob("*.py")
    if 'if __name__ == "__main__":' in path.read_text()
    and path.name != "verification.py"  # SIGINT spares it
]

STUCK = """
import ctypes, sys, threading
from pathlib import Path
from trainer.hosts.exits import WATCHER
from trainer.hosts.supervisor import Supervisor

libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
with WATCHER.watching(Supervisor()):
    libc.pthread_mutex_lock(mutex)
    threading.Timer(0.5, Path(sys.argv[1]).touch).start()
    libc.pthread_mutex_lock(mutex)  # for ever, and no signal ends it
"""

UNCAUGHT = """
import atexit
from trainer.hosts.exits import Interrupted
from trainer.hosts.supervisor import Supervisor

atexit.register(print, "at the end")
Supervisor()
raise Interrupted("SIGINT; step 7 is saved")
"""

UNFINISHED = """
import jax
from unittest.mock import Mock
from trainer.hosts import exits

def predictions():
    with exits.WATCHER.watching(Mock(leavable=False)):
        yield

jax.kept = predictions  # and with it this module, as a cache of jax does with a loss
iterator = predictions()
next(iterator)
"""

WITH_WORKER = """
import multiprocessing, time
from trainer.hosts.exits import leave

worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)
worker.start()
leave(0)
"""


class Call:
    """What a Watcher looks after. ticked: set by each look."""

    def __init__(self):
        self.leavable, self.heard, self.ticked = False, [], threading.Event()

    def asked(self, name):
        self.heard.append(name)

    def leave(self):
        raise KeyboardInterrupt

    def tick(self):
        self.ticked.set()


def look(call):
    """Returns once the thread has handled what was sent before."""
    for _ in range(2):
        call.ticked.clear()
        assert call.ticked.wait(20)


@pytest.fixture(autouse=True)
def default_handler():
    # tests that run in the background ignore it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)
    WATCHER.terminated = False


def start_stuck(fork_server, tmp_path):
    process = fork_server.start(["-c", STUCK, str(tmp_path / "stuck")], tmp_path / "printed")
    stop = time.monotonic() + 60
    while not (tmp_path / "stuck").exists() and time.monotonic() < stop:
        time.sleep(0.01)
    return process


def test_a_stuck_process_ends_even_if_nobody_reads_what_it_prints(fork_server, tmp_path):
    os.mkfifo(tmp_path / "printed")
    reader = os.open(tmp_path / "printed", os.O_RDONLY | os.O_NONBLOCK)
    process = start_stuck(fork_server, tmp_path)
    os.close(reader)  # as Ctrl-C ends `tee`
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)  # so that the second one is not taken for the first
    process.send_signal(signal.SIGINT)
    assert process.wait()[0] == 130


@pytest.mark.parametrize("again", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_is_heard_while_the_main_thread_runs_c_code_and_a_second_signal_ends_it(
    fork_server, tmp_path, again
):
    process = start_stuck(fork_server, tmp_path)
    process.send_signal(signal.SIGINT)
    process.wait_for("interrupted: ending; a second Ctrl-C ends the process without saving\n")
    time.sleep(1.2)  # a launcher may pass on a SIGTERM within a second
    assert process.poll() is None
    process.send_signal(again)
    assert process.wait()[0] == 130
    assert (
        "interrupted: SIGINT; a second time, so it ends without saving: nothing is saved"
        in process.printed
    )


def test_the_innermost_call_hears_a_signal_and_the_handlers_are_restored(default_handler):
    outer, inner = Call(), Call()
    with WATCHER.watching(outer):
        with WATCHER.watching(inner):
            os.kill(os.getpid(), signal.SIGINT)
            look(inner)
        os.kill(os.getpid(), signal.SIGTERM)
        look(outer)
    assert (outer.heard, inner.heard, WATCHER.terminated) == (["SIGTERM"], ["SIGINT"], True)
    assert signal.getsignal(signal.SIGINT) is default_handler
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.slow
def test_two_signals_are_heard_while_an_event_loop_listens_in_the_main_thread():
    read, write = os.pipe()
    os.set_blocking(write, False)
    for begun_before in (True, False):
        call, ours = Call(), signal.set_wakeup_fd(write) if begun_before else -1
        with WATCHER.watching(call):
            # as uvloop does while it runs
            ours = ours if begun_before else signal.set_wakeup_fd(write)
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                look(call)
            assert call.heard == ["SIGINT"] * 2
            assert os.read(read, 10) == bytes([signal.SIGINT]) * 2  # the loop hears it, too
        assert signal.set_wakeup_fd(ours) == write
    os.close(read)
    os.close(write)


def test_a_call_that_may_be_left_anywhere_is_left_at_once():
    call = Call()
    with WATCHER.watching(call):
        call.leavable = True
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(20)


def test_another_thread_than_the_main_one_installs_nothing(default_handler):
    handlers = []

    def work():
        with WATCHER.watching(Call()):
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [default_handler]


def test_a_handler_of_the_program_stays(monkeypatch):
    heard, call = [], Call()
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    with WATCHER.watching(call):
        os.kill(os.getpid(), signal.SIGTERM)
        mine = signal.signal(
            signal.SIGINT, lambda number, _: heard.append(number)
        ) and signal.getsignal(signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        look(call)
    assert signal.getsignal(signal.SIGINT) is mine
    assert (heard, call.heard) == ([signal.SIGTERM, signal.SIGINT], [])
    signal.signal(signal.SIGTERM, before)


def test_all_calls_share_one_thread_which_rests_between_them():
    with WATCHER.watching(call := Call()), WATCHER.watching(Call()):
        look(call)
        assert [thread.name for thread in threading.enumerate()].count("trainer-supervisor") == 1
    call.ticked.clear()
    assert not call.ticked.wait(3 * signals.TICK_SECONDS)


# of JAX, if another test has used it in this process
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
# the same of Python 3.12
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_pythons_handlers_and_may_make_calls_of_its_own():
    with WATCHER.watching(call := Call()):
        look(call)
        if not (pid := os.fork()):
            fine = signal.getsignal(signal.SIGINT) is signal.default_int_handler
            with WATCHER.watching(own := Call()):
                os._exit(0 if fine and own.ticked.wait(20) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not call.heard


@pytest.mark.slow
def test_an_uncaught_interrupt_runs_exit_functions_and_exits_with_130(run_forked):
    status, printed = run_forked(["-c", UNCAUGHT], timeout=60)
    assert status == 130, printed
    assert "Interrupted: SIGINT; step 7 is saved" in printed
    assert printed.count("at the end") == 1


@pytest.mark.parametrize("program", [UNFINISHED, WITH_WORKER], ids=["iterator", "worker"])
def test_what_a_program_leaves_behind_ends_with_it_and_says_nothing(program):
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, cwd=ROOT, capture_output=True, text=True,
        timeout=30,
    )  # fmt: skip
    # a worker that lived on would keep the pipes open
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_each_command_answers_ctrl_c_before_it_imports_anything_else():
    assert len(COMMANDS) > 10
    for path in COMMANDS:
        first = next(
            node for node in ast.parse(path.read_text()).body if not isinstance(node, ast.Expr)
        )
        assert re.search(
            r"if __name__ == '__main__':.*ctrl_c_exits\(\)", ast.unparse(first), re.DOTALL
        ), path


@pytest.mark.slow
def test_ctrl_c_among_the_imports_ends_a_command_with_130_and_no_traceback(tmp_path):
    command = [sys.executable, "-X", "importtime", "-m", "trainer", "digits", "--help"]
    with (tmp_path / "printed").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT)
    while (
        "pipeline.errors" not in (printed := (tmp_path / "printed").read_text())
        and process.poll() is None
    ):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, printed
    assert "Traceback" not in (printed := (tmp_path / "printed").read_text())
    assert "interrupted; run the same command again\n" in printed
