"""Whether an owner of this machine lives: also suspended, killed and not waited for, and with a pid used again."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.errors import OwnerError
from trainer.ownership.owner_files import OwnerFiles, Record, is_suspended, lives, this_process

CONTAINER = """
import os, sys
from dataclasses import replace
from trainer.ownership.ownership import Times
from trainer.ownership.owner_files import this_process
from trainer.ownership.ownership import Contender

here = replace(this_process(), machine=f"container {this_process().machine.split()[-1]}", namespace="pid:[1]")
Contender(sys.argv[1], Times(renew=1e9), here=here).take()
if os.fork() == 0:  # the child, which has by now dropped the lock that it inherited
    print("it owns the directory", flush=True)
sys.stdin.read()
os._exit(0)"""


@pytest.fixture
def sleeper():
    """(a process that lives, its Popen)."""
    with subprocess.Popen(["sleep", "1000"]) as child:
        stat = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        yield replace(this_process(), pid=child.pid, started=int(stat[19])), child
        child.kill()


def wait_for_state(child, state):
    options = {"T": os.WSTOPPED, "Z": os.WEXITED}[state]
    os.waitid(os.P_PID, child.pid, options | os.WNOWAIT)


def test_an_owner_lives_until_it_is_killed_also_suspended_and_a_zombie_does_not(sleeper, tmp_path, contend):
    process, child = sleeper
    here, files = this_process(), OwnerFiles(str(tmp_path))
    assert (lives(process, here), is_suspended(process)) == (True, False)
    files.create(1, Record("token", process, "2026-01-01T00:00:00+00:00"))
    child.send_signal(signal.SIGSTOP)
    wait_for_state(child, "T")
    assert (lives(process, here), is_suspended(process)) == (True, True)
    suspended = rf"suspended \(kill -CONT {child.pid} resumes it\): host .*, process {child.pid}, "
    with pytest.raises(OwnerError, match=suspended):
        contend(str(tmp_path), silence=0)
    child.kill()
    wait_for_state(child, "Z")
    assert lives(process, here) is False
    taken = contend(str(tmp_path), silence=60)
    assert taken.lost == process
    child.wait()
    assert lives(process, here) is False


def test_a_pid_that_was_used_again_is_another_process(sleeper):
    process, _ = sleeper
    assert lives(replace(process, started=process.started - 1), this_process()) is False


def test_whether_processes_of_other_machines_or_containers_live_is_unknown(sleeper):
    process, here = sleeper[0], this_process()
    for other in (replace(process, machine="another"), replace(process, namespace="pid:[1]")):
        assert lives(other, here) is None
    assert lives(replace(process, machine=""), replace(here, machine="")) is None


def test_a_name_for_the_machine_tells_clones_apart(monkeypatch):
    before = this_process()
    monkeypatch.setenv("INFEED_MACHINE", "clone 7")
    assert this_process().machine != before.machine
    assert this_process().machine == f"{before.machine}-clone 7"
    assert not this_process().shares_kernel(before)


@pytest.mark.slow
def test_only_the_owner_itself_and_not_its_child_keeps_the_record_in_another_container(tmp_path, contend):
    """It gives no other sign of life, as if it were suspended; its child lives longer than it."""
    with subprocess.Popen([sys.executable, "-c", CONTAINER, tmp_path], stdin=-1, stdout=-1, text=True) as owner:
        assert owner.stdout.readline() == "it owns the directory\n"
        with pytest.raises(OwnerError, match="is running"):
            contend(str(tmp_path), silence=0)
        owner.kill()
        os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
        contend(str(tmp_path), silence=0)
        owner.stdin.close()
