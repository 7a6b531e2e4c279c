"""A host that is alive and never goes on ends the run on all hosts, with its name, and the run resumes bit for bit.

The limits are those of TrainerConfig divided by ten or more: see host_stuck.py. SWEEP=1 runs every way to hang, on one,
two and four processes, at the first step, in the middle and at the end."""

import itertools
import json
import re
import signal
import time

import pytest
from sweep import SWEEP

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 40  # as in host_stuck.py
TIMEOUT = 6.0  # host_timeout_seconds
SLACK = 8.0  # two looks, the end of the processes, and a busy machine
LEAVE = 5.0
WAYS = ("callback", "input", "save", "evaluation", "device", "stopped", "lock")
# (how, which host hangs, of how many, steps per dispatch, at which step)
ROWS = [
    ("callback", 1, 2, 10, 20),
    ("device", 0, 2, 1, 22),
    ("lock", 0, 1, 1, 1),
    ("save", 1, 2, 1, 20),
    ("stopped", 1, 2, 1, 22),
]
if SWEEP:
    ROWS = [
        (how, 0 if how == "device" else count - 1, count, k, at)
        for how, count, k, at in itertools.product(WAYS, (1, 2, 4), (1, 10), (1, 22, STEPS))
        if not (how == "stopped" and count == 1)
    ]
SAID = {
    "callback": "s; it is in on_loop_end of the callback Hanging (limit 8 s: callback_seconds)",
    "evaluation": "s; it is in on_evaluation_end of the callback Hanging (limit 8 s: callback_seconds)",
    "save": "s; it is saving a checkpoint (limit 16 s: save_seconds)",
    "input": "for input from thread 'trainer-feeder', and nothing came",
    "device": " has launched the steps up to ",
}
BOUND = {
    "callback": 8.0,
    "evaluation": 8.0,
    "save": 16.0,
    "input": 9.0,
    "device": 20.0,  # until three dispatches have finished
    "stopped": TIMEOUT,
    "lock": TIMEOUT + 10.0,
}


@pytest.fixture(scope="module")
def start(start_hosts):
    def started(how, host, count, k, at, **order):
        order = {"host_timeout_seconds": TIMEOUT, "slow": 0.0} | order
        return start_hosts("stuck", count, how=how, host=host, k=k, at=at, **order)

    return started


@pytest.fixture(scope="module")
def stuck(start):
    """stuck(row) -> ([Ended of each process], when the host hung). The next two are already under way: they wait."""
    runs, ended = {}, {}

    def end(row):
        at = ROWS.index(row)
        for each in ROWS[at : at + 3]:
            if each not in runs:
                runs[each] = start(*each)
        if row not in ended:
            if row[0] == "stopped":
                continue_at_the_end(runs[row].processes, row[1])
            ended[row] = runs[row].end(200), float((runs[row].out / "hung").read_text())
        return ended[row]

    return end


def continue_at_the_end(processes, host):
    for index, process in enumerate(processes):
        if index != host:
            process.wait(120)
    processes[host].send_signal(signal.SIGCONT)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_host_that_never_goes_on_ends_all_within_the_limit_with_its_name(stuck, row):
    how, host, count, _, at = row
    ended, hung = stuck(row)
    for index, process in enumerate(ended):
        if how == "input":
            assert process.code == (1 if index == host else 3), process.printed  # a program, not the command: 1
        elif how == "lock" and index == host:
            assert process.code == -signal.SIGKILL, process.printed
        else:
            assert process.code == 3, process.printed
        if not (how == "stopped" and index == host):
            assert process.at - hung < BOUND[how] + LEAVE + SLACK
        last = how == "evaluation" and at == STEPS and index != host  # its call has ended
        assert last or "trained" not in process.report
        said = process.printed if process.code != 1 else process.printed + json.dumps(process.report)
        if how in ("lock", "stopped"):
            if index != host:
                assert f"host {host} of {count} failed: it sent no heartbeat for 3 s" in said
            elif how == "lock":
                assert "has given no sign for 6 s: code in C holds Python's lock, or nobody reads what it" in said
        else:
            assert SAID[how] in said
            who = "the devices are stuck" if how == "device" else f"host {host} of {count} is stuck"
            warned = said.count("then the run ends")  # at a quarter of the limit
            assert warned <= 1
            assert warned or how == "input" or index != host
            if count > 1 and how != "input":
                assert f"{who}: no progress for" in said
            if not last and (how != "input" or index == host):
                assert "host_worker.py" in said  # the stacks of its threads


@pytest.mark.parametrize("row", [row for row in ROWS if row[0] == "callback" or (SWEEP and row[2] == 2)], ids=str)
def test_a_run_that_was_stuck_resumes_with_the_bits_of_one_that_was_not(start, stuck, row):
    how, _, count, k, at = row
    ended, _ = stuck(row)
    again = start("device" if how == "device" else "", -1, count, k, at, workdir=str(ended[0].out / "workdir"))
    straight = start("device" if how == "device" else "", -1, count, k, at)
    for one, other in zip(again.end(200), straight.end(200), strict=True):
        assert one.code == other.code == 0, one.printed
        assert one.report["trained"] == other.report["trained"]


@pytest.mark.parametrize(
    ("signals", "code", "said"),
    [
        ([signal.SIGTERM], 75, "SIGTERM; no progress for 10 s; it is in on_loop_end of the callback Hanging"),
        ([signal.SIGINT, signal.SIGTERM], 75, "SIGTERM; a second time, so it ends without saving: step "),
    ],
)
def test_a_stuck_process_that_is_asked_to_end_ends_without_saving_and_says_which_step_is_safe(
    start, signals, code, said
):
    run = start("callback", 0, 1, 1, 22, limits={"callback_seconds": 600.0}, host_timeout_seconds=600.0)
    hung = run.out / "hung"
    while not hung.exists():
        time.sleep(0.1)
    for number in signals:
        run.processes[0].send_signal(number)
        time.sleep(1.5)  # a launcher may send the same signal again within a second
    (process,) = run.end(60)
    assert process.code == code, process.printed
    assert said in process.printed
    assert re.search("step [12]0 is the last that is saved, and the same command resumes from there", process.printed)
    assert process.at - float(hung.read_text()) < (10.0 if len(signals) == 1 else 4.0) + SLACK


def test_a_slow_host_is_not_stuck_and_is_named_in_the_metrics_and_the_progress_line(start):
    run = start("", -1, 2, 1, 0, slow=0.4)
    for process in run.end(120):
        assert process.code == 0, process.printed
        assert "no progress" not in process.printed
    lines = [json.loads(line) for line in (run.out / "workdir" / "train" / "metrics.jsonl").read_text().splitlines()]
    told = [line for line in lines if "speed/slowest_host" in line][1:]  # the first beats are from the compilation
    assert told
    for line in told:
        assert line["speed/slowest_host"] == 1
        assert line["speed/slowest_share"] > 0.5
        assert 0 <= line["speed/input_wait_max"] < 0.5


def test_ctrl_c_while_the_program_uses_a_prediction_is_told_with_the_next_and_ends_nothing(start_hosts):
    (process,) = start_hosts("interrupted_consumer", 1, host_timeout_seconds=TIMEOUT).end(120)
    assert process.code == 0, process.printed
    assert process.report == {"used": True, "told": True}


def test_a_host_may_end_a_save_later_than_the_others_by_more_than_writing_may_take(start):
    for process in start("", -1, 2, 10, 0, late=4.0, limits={"save_seconds": 2.0}).end(200):
        assert process.code == 0, process.printed
