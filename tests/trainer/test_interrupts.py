"""Ctrl-C outside of the trainer's calls, what a second one does, and compilations that are left: in processes."""

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

from trainer.exits import FirstOne, Interrupts

ROOT = Path(__file__).parents[2]
COMMANDS = [
    path
    for package in ("pipeline", "trainer", "converters")
    for path in (ROOT / package).rglob("*.py")
    if 'if __name__ == "__main__":' in path.read_text()
    and path.name not in ("guard.py", "service.py", "serving_process.py")  # which SIGINT does not reach
]

STUCK = """
import ctypes, sys, threading
from pathlib import Path
from trainer.exits import FirstOne, Interrupts

libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
with Interrupts(FirstOne[sys.argv[1]], "heard"):
    libc.pthread_mutex_lock(mutex)
    threading.Timer(0.5, Path(sys.argv[2]).touch).start()  # a signal before the next line would raise there
    libc.pthread_mutex_lock(mutex)  # for ever, and no signal ends it
"""

IMPORTS = """
import importlib, os, signal, sys
from pathlib import Path
from trainer.exits import FirstOne, Interrupts

Path(sys.argv[1], "slow.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT); done = True")
sys.path.append(sys.argv[1])
with Interrupts(FirstOne.RAISES, "heard") as interrupts:
    assert importlib.import_module("slow").done
    try:
        interrupts.check()
    except KeyboardInterrupt:
        sys.stdout.write("after the import\\n")  # at once: print writes the end of the line separately
"""

BETWEEN = """
import os, signal, time
from trainer.exits import FirstOne, Interrupts

with Interrupts(FirstOne.WAITS, "heard"):
    set_fd, sent = signal.set_wakeup_fd, []

    def second(*_):
        sent.append(os.kill(os.getpid(), signal.SIGINT))

    def set_and_interrupt(fd, **options):
        before = set_fd(fd, **options)
        if fd == -1 and not sent:
            second()
        return before

    signal.set_wakeup_fd = set_and_interrupt
    os.kill(os.getpid(), signal.SIGINT)
    sent or second()
    time.sleep(10)
"""

UNCAUGHT = """
import atexit, threading, time
from trainer.exits import Interrupted

atexit.register(print, "at the end")
raise Interrupted("SIGINT; step 7 is saved")
"""


@pytest.mark.parametrize("first", ["RAISES", "LEAVES"])
def test_ctrl_c_is_noticed_while_the_main_thread_runs_c_code_and_a_second_one_exits(fork_server, tmp_path, first):
    process = fork_server.start(["-c", STUCK, first, str(tmp_path / "stuck")], tmp_path / "printed")
    stop = time.monotonic() + 60
    while not (tmp_path / "stuck").exists() and time.monotonic() < stop:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.wait_for("heard\n")
    if first == "RAISES":
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
    assert process.wait()[0] == 130
    assert process.printed == "heard\n"


@pytest.mark.slow
def test_ctrl_c_is_raised_only_after_a_running_import(run_forked, tmp_path):
    status, printed = run_forked(["-c", IMPORTS, str(tmp_path)], timeout=60)
    assert status == 0, printed
    assert sorted(printed.splitlines()) == ["after the import", "heard"]


@pytest.mark.slow
def test_a_second_ctrl_c_works_while_the_first_is_being_handled(run_forked):
    status, printed = run_forked(["-c", BETWEEN], timeout=60)
    assert (status, printed) == (130, "heard\n")


@pytest.mark.slow
def test_an_uncaught_interrupt_runs_exit_functions_and_exits_with_130(run_forked):
    status, printed = run_forked(["-c", UNCAUGHT], timeout=60)
    assert status == 130, printed
    assert "KeyboardInterrupt" in printed or "Interrupted: SIGINT; step 7 is saved" in printed
    assert printed.count("at the end") == 1


@pytest.fixture
def default_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background ignore it
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_the_innermost_interrupt_handler_acts_and_the_previous_one_is_restored(default_handler, capfd):
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = signal.set_wakeup_fd(write)
    try:
        with Interrupts(FirstOne.WAITS, "outer") as outer:
            with Interrupts(FirstOne.WAITS, "inner") as inner:
                os.kill(os.getpid(), signal.SIGINT)
            assert (outer.heard, inner.heard) == (False, True)
            with pytest.raises(KeyboardInterrupt):
                inner.check()
            outer.check()
        assert signal.getsignal(signal.SIGINT) is default_handler
        assert os.read(read, 10) == bytes([signal.SIGINT])  # the program's event loop hears it, too
    finally:
        assert signal.set_wakeup_fd(before) == write
        os.close(read)
        os.close(write)
    assert capfd.readouterr().err == "inner\n"


def test_ctrl_c_is_heard_while_an_event_loop_listens_in_the_main_thread(default_handler, capfd):
    read, write = os.pipe()
    os.set_blocking(write, False)
    with Interrupts(FirstOne.WAITS, "heard") as interrupts:
        ours = signal.set_wakeup_fd(write)  # as uvloop does while it runs
        os.kill(os.getpid(), signal.SIGINT)
        signal.set_wakeup_fd(ours)
        assert interrupts._answered.wait(60)
    os.close(read)
    os.close(write)
    assert capfd.readouterr().err == "heard\n"


def test_another_thread_than_the_main_one_installs_nothing(default_handler):
    handlers = []

    def work():
        with Interrupts(FirstOne.WAITS, "heard"):
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [default_handler]


def test_a_handler_that_the_program_sets_meanwhile_stays(default_handler):
    def own(number, frame):
        pass

    with Interrupts(FirstOne.WAITS, "heard"):
        signal.signal(signal.SIGINT, own)
    assert signal.getsignal(signal.SIGINT) is own


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # of JAX, if another test has used it in this process
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # the same of Python 3.12
def test_a_forked_process_has_pythons_handler_again(default_handler):
    with Interrupts(FirstOne.WAITS, "heard") as interrupts:
        if not (pid := os.fork()):
            os._exit(0 if signal.getsignal(signal.SIGINT) is default_handler else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not interrupts.heard


def test_each_command_answers_ctrl_c_before_it_imports_anything_else():
    assert len(COMMANDS) > 10
    for path in COMMANDS:
        first = next(node for node in ast.parse(path.read_text()).body if not isinstance(node, ast.Expr))
        assert re.search(r"if __name__ == '__main__':.*leave_at_once\(\)", ast.unparse(first), re.DOTALL), path


@pytest.mark.slow
def test_ctrl_c_among_the_imports_ends_a_command_with_130_and_no_traceback(tmp_path, default_handler):
    command = [sys.executable, "-X", "importtime", "-m", "trainer", "digits", "--help"]
    with (tmp_path / "printed").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT)
    while "pipeline.errors" not in (printed := (tmp_path / "printed").read_text()) and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, printed
    assert "Traceback" not in (tmp_path / "printed").read_text()


ABANDONED = """
import sys, time
from pathlib import Path
from trainer.exits import EXIT_USER_ERROR, Preempted, end
from trainer.exits import interruptible

def compile():
    time.sleep(1.5)
    Path(sys.argv[2]).touch()

def check():
    raise Preempted("SIGTERM") if sys.argv[1] == "preempted" else OSError("the input is gone")

try:
    interruptible(compile, check)
except OSError:
    if sys.argv[1] == "our command":
        end(EXIT_USER_ERROR)
    raise
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code", "waits"), [("raised", 1, True), ("our command", 2, False), ("preempted", 75, False)]
)
def test_a_program_waits_at_exit_for_an_abandoned_compilation_unless_preempted(run_forked, tmp_path, how, code, waits):
    # An interpreter that ends while XLA compiles in a thread aborts, which hides the error and its exit code.
    compiled = tmp_path / "compiled"
    status, printed = run_forked(["-c", ABANDONED, how, str(compiled)], timeout=60)
    assert status == code, printed
    assert compiled.exists() == waits
    assert ("the input is gone" in printed) == (how == "raised")
