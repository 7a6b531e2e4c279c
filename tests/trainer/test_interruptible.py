"""A compilation that the main thread leaves: how the program ends that was in it."""

import pytest

PROGRAM = """
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


@pytest.mark.parametrize(
    ("how", "code", "waits"), [("raised", 1, True), ("our command", 2, False), ("preempted", 75, False)]
)
def test_a_program_waits_at_exit_for_an_abandoned_compilation_unless_preempted(run_forked, tmp_path, how, code, waits):
    # An interpreter that ends while XLA compiles in a thread aborts, which hides the error and its exit code.
    compiled = tmp_path / "compiled"
    status, printed = run_forked(["-c", PROGRAM, how, str(compiled)], timeout=60)
    assert status == code, printed
    assert compiled.exists() == waits
    assert ("the input is gone" in printed) == (how == "raised")
