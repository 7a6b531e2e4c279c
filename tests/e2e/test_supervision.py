"""What happens when something happens to a host: the table in docs/hosts.md, row by row, with real processes.

The limits are those of TrainerConfig divided by much: see host_situations.py. SWEEP=1 runs more rows."""

import contextlib
import itertools
import json
import re
import signal
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from sweep import SWEEP

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEPS, EVERY, WORK = 40, 10, 8.0  # as in host_situations.py
TIMEOUT = 12.0  # host_timeout_seconds
SLACK = 8.0  # the end of the processes, on a busy machine
JAX = 10.0  # its abort may come so much later


@dataclass(frozen=True)
class Row:
    """What happens on `host` of `count`, once it is `where` at step `at`. code: of that host; said: by the others."""

    how: str
    where: str
    host: int = 1
    count: int = 2
    code: int = 1
    said: str = ""
    bound: float = TIMEOUT
    at: int = 22
    k: int = 1
    more: dict[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"{self.how} {self.where}, host {self.host} of {self.count}"


FIRE = "OSError: the disk of this host is on fire"
SHAPE = "a batch's image is uint8 [8, 4, 8]; expected uint8 [8, 8, 8]"
LOST = "the first checkpoint cannot be read again, so this run could not resume: cannot read "
STUCK = (
    f"no progress for {WORK:g} s: it is in on_loop_end of the callback AtStep (limit {WORK:g} s)"
)
EVALUATION_END = "in on_evaluation_end of the callback"
DEVICES = "waiting for its devices: it has launched the steps up to "
EXCEPTIONS = [
    Row("raises", "input", said=FIRE),
    Row("loses", "checkpoint", host=0, said=LOST),
]
DEATHS = [Row("SIGKILL", "callback", code=-9)]
HANGS = [
    Row("hangs", "callback", code=3, said=STUCK, bound=WORK),
    Row("hangs", "device", host=0, code=3, said=DEVICES, bound=TIMEOUT, at=30),
]
ALONE = [Row("hangs", "callback", host=0, count=1, code=3, said=STUCK, bound=WORK)]
if SWEEP:
    EXCEPTIONS += [
        Row("raises", "callback", host=0, count=4, said=FIRE),
        Row("raises", "between", host=0, said=FIRE),
        Row("reshapes", "input", host=0, said=SHAPE),
    ]
    DEATHS += [Row("SIGKILL", "callback", host=0, code=-9)]
    HANGS += [Row("hangs in C", "evaluation", 0, code=3, said=EVALUATION_END, bound=WORK, at=10)]
    for where, host in itertools.product(("input", "evaluation"), (0, 3)):
        EXCEPTIONS += [Row("raises", where, host, 4, said=FIRE)]
        DEATHS += [Row("SIGKILL", where, host, 4, code=-9)]
    HANGS += [Row("hangs", "callback", 3, 4, code=3, said=STUCK, bound=WORK, k=10)]


@pytest.fixture(scope="module")
def start(start_hosts):
    """start(row) -> Run."""

    def started(row, **order):
        told = {name: getattr(row, name) for name in ("how", "where", "host", "at", "k")}
        told |= {"slow": 0.0, "host_timeout_seconds": TIMEOUT}
        return start_hosts("situation", row.count, **told | row.more | order)

    return started


@pytest.fixture(scope="module")
def happened(start):
    """happened(row) -> ([Ended of each process], when it happened). The next row is already under way: they wait."""
    rows, runs = [*EXCEPTIONS, *DEATHS, *HANGS, *ALONE], {}

    def end(row):
        for each in rows[rows.index(row) :][:2]:
            if each not in runs:
                runs[each] = start(each)
        return runs[row].end(200), float((runs[row].out / "happened").read_text())

    return end


@pytest.mark.parametrize("row", EXCEPTIONS, ids=str)
def test_an_exception_on_one_host_ends_the_others_in_time_with_its_number_and_its_first_line(
    happened, row
):
    ended, at = happened(row)
    for index, process in enumerate(ended):
        assert process.at - at < row.bound + SLACK
        assert "Check failure" not in process.printed
        if index == row.host:
            assert process.code == 1, process.printed
            assert "Traceback" in process.printed
            assert row.said in process.report["error"]
        else:
            assert process.code == 3, process.printed
            assert f"host {row.host} of {row.count} failed: {row.said}" in process.printed
        assert "evaluated" not in process.report


@pytest.mark.parametrize("row", DEATHS, ids=str)
def test_a_host_that_is_killed_ends_the_others_by_jaxs_abort_of_which_the_log_has_warned(
    happened, row
):
    ended, at = happened(row)
    for index, process in enumerate(ended):
        assert process.at - at < row.bound + JAX + SLACK
        assert process.code == (-9 if index == row.host else -signal.SIGABRT), process.printed
        assert (
            "if one is lost, JAX aborts this process (exit code 134); the same command resumes"
            in process.printed
        )


@pytest.mark.parametrize("row", HANGS, ids=str)
def test_a_host_that_is_stuck_ends_itself_with_its_stacks_and_the_others_with_its_reason(
    happened, row
):
    ended, at = happened(row)
    for process in ended:
        assert process.code == 3, process.printed
        assert process.at - at < row.bound + SLACK
        assert row.said in process.printed
        assert "host_situations.py" in process.printed or row.where == "device"
        assert "Thread MainThread" in process.printed
    who = r"host \d" if row.where == "device" else f"host {row.host}"
    assert re.search(rf"{who} of {row.count} failed: no progress for ", ended[1 - row.host].printed)


@pytest.mark.parametrize("row", ALONE, ids=str)
def test_a_single_process_that_is_stuck_ends_itself(happened, row):
    (process,), at = happened(row)
    assert process.code == 3, process.printed
    assert process.at - at < row.bound + SLACK
    assert f"error: {row.said}" in process.printed


def test_a_run_that_was_stuck_resumes_with_the_bits_of_one_that_was_not(start, happened):
    row = HANGS[0]
    ended, _ = happened(row)
    nothing = Row("", "", host=-1)
    again, straight = start(nothing, workdir=str(ended[0].out / "workdir")), start(nothing)
    for one, other in zip(again.end(200), straight.end(200), strict=True):
        assert one.code == other.code == 0, one.printed
        assert one.report["trained"] == other.report["trained"]


@pytest.mark.parametrize("seconds", [0.4 * TIMEOUT, *[10 * TIMEOUT] * SWEEP])
def test_a_host_that_was_suspended_goes_on_or_ends_once_the_others_have(start, seconds):
    run = start(Row("SIGSTOP", "callback"))
    while not (run.out / "happened").exists():
        time.sleep(0.1)
    stop = time.monotonic() + seconds
    while time.monotonic() < stop and run.processes[0].poll() is None:
        time.sleep(0.1)
    run.processes[1].send_signal(signal.SIGCONT)
    first, second = (process.code for process in run.end(200))
    if seconds < TIMEOUT:
        assert (first, second) == (0, 0)
    else:
        assert first == -signal.SIGABRT
        assert second not in (0, -9)


def test_a_host_may_keep_the_others_waiting_for_longer_than_a_dispatch_may_take(start):
    more = {"seconds": 3 * 4.0, "limits": {"work_seconds": 60.0}}
    row = Row("pauses", "callback", more=more, at=38)
    first, second = start(row, host_timeout_seconds=4.0).end(200)
    assert (first.code, second.code) == (0, 0), first.printed
    assert "finished; host 1 of 2 is in on_loop_end of the callback AtStep" in first.printed


AGAIN = "SIGINT; a second time, so it ends without saving: step "
PATIENT = {"limits": {"work_seconds": 600.0}}
ENDS = "SIGTERM; no progress for 10 s; it is in on_loop_end of the callback AtStep"
ASKED = [Row("SIGTERM", "callback", host=0, count=1, code=75, said=ENDS, more=PATIENT)]
ASKED += [Row("SIGINT SIGINT", "callback", code=130, said=AGAIN, more=PATIENT)] * SWEEP


@pytest.mark.parametrize("row", ASKED, ids=str)
def test_a_process_that_was_asked_to_end_and_cannot_says_which_step_is_saved(start, row):
    if row.count == 1:
        run = start(replace(row, how="hangs"))
        while not (run.out / "happened").exists():
            time.sleep(0.1)
        run.processes[0].send_signal(signal.SIGTERM)
    else:
        run = start(row)
    ended = run.end(100)
    process, at = ended[row.host], float((run.out / "happened").read_text())
    assert process.code == row.code, process.printed
    assert row.said in process.printed
    saved = "step [12]0 is the last that is saved, and the same command resumes from there"
    assert re.search(saved, process.printed)
    assert process.at - at < 10.0 + SLACK
    assert row.count == 1 or ended[0].code == 3, ended[0].printed


@pytest.mark.sweep
def test_a_slow_host_is_not_stuck_and_is_named_in_the_metrics_and_the_progress_line(start):
    run = start(Row("", "", host=-1), slow=0.2)
    for process in run.end(120):
        assert process.code == 0, process.printed
        assert "no progress" not in process.printed
    lines = map(json.loads, (run.out / "workdir/train/metrics.jsonl").read_text().splitlines())
    # the first has compilations
    told = [line for line in lines if "speed/slowest_host" in line][1:]
    assert told
    for line in told:
        assert line["speed/slowest_host"] == 1
        assert line["speed/slowest_share"] > 0.5


@pytest.mark.sweep
def test_ctrl_c_while_the_program_uses_a_prediction_is_told_with_the_next_and_ends_nothing(
    start_hosts,
):
    (process,) = start_hosts("interrupted_consumer", 1, host_timeout_seconds=TIMEOUT).end(120)
    assert process.code == 0, process.printed
    assert process.report == {"used": True, "told": True}


def threads_and_children(process):
    """The names of its threads and the ids of its children, as they were while no thread ended."""
    while process.poll() is None:
        with contextlib.suppress(OSError):  # a thread that ended while its files were read
            tasks = [*Path(f"/proc/{process.pid}/task").iterdir()]
            names = [(task / "comm").read_text().strip() for task in tasks]
            return names, [pid for task in tasks for pid in (task / "children").read_text().split()]
    raise AssertionError(f"the process ended with {process.poll()}")


def test_a_small_run_has_one_thread_of_supervision_and_no_process(start):
    run = start(Row("hangs", "callback", host=0, count=1, more=PATIENT))
    while not (run.out / "happened").exists():
        time.sleep(0.1)
    names, children = threads_and_children(run.processes[0])
    run.kill()
    print(f"{len(names)} threads: {sorted(names)}; {len(children)} processes")
    assert children == []
