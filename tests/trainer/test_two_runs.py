"""Trainings in one work directory, as processes: a second one, one that was lost and wakes up, one that is killed.

SWEEP=1 has every kind of storage, 29 kills and 58 signals to end, and twenty pairs that start at once."""

import contextlib
import hashlib
import json
import os
import random
import signal
import time
from pathlib import Path

import owned_run
import pytest
from sweep import SWEEP

from pipeline.errors import OwnerError
from pipeline.storage.schemes import open_storage
from trainer.reports.segments import read_history

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def start(fork_server, tmp_path_factory):
    """start(workdir, **options) -> (process, path of its report). With the XLA_FLAGS of this one, so with its bits."""
    started = []

    def run(workdir, env=(), **options):
        out = tmp_path_factory.mktemp("out") / "report.json"
        env = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"} | dict(env)
        command = [owned_run.__file__, str(workdir), str(out), json.dumps(options)]
        started.append(fork_server.start(command, out.with_name("printed"), env))
        return started[-1], out

    yield run
    for process in started:
        process.kill()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    workdir = str(tmp_path_factory.mktemp("undisturbed"))
    owned_run.trainer(workdir).train(owned_run.batches, max_steps=owned_run.STEPS)
    return owned_run.published(workdir)


@pytest.fixture(params=["disk", *(["bucket"] if SWEEP else [])])
def place(request, tmp_path, gcs_server):
    """(a work directory, the environment of processes that reach it)."""
    if request.param == "bucket":
        return f"{request.getfixturevalue('bucket')}/run", gcs_server.env
    return str(tmp_path / "run"), {}


def wait_until(there, process):
    stop = time.monotonic() + 60
    while not there():
        assert time.monotonic() < stop, process.printed
        assert process.poll() is None, process.printed
        time.sleep(0.01)


def is_stopped(process):
    """Whether all of its threads are, after SIGSTOP."""
    with contextlib.suppress(OSError):  # a thread that ended while its file was read
        stats = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/stat")]
        return bool(stats) and all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)
    return False


def contents(workdir):
    """{path: digest} of all files that were published, but the owner's record, which is renewed."""
    storage = open_storage(workdir)

    def below(directory):
        files, directories = storage.entries(directory)
        yield from (f"{directory}/{name}" for name in files)
        for name in directories:
            yield from below(f"{directory}/{name}")

    apart = ("/_owner/", ".orbax-checkpoint-tmp")
    paths = (path for path in below(workdir) if not any(part in path for part in apart))
    return {path: hashlib.sha256(storage.read(path)).hexdigest() for path in paths}


def error_of(out):
    return json.loads(out.read_text())["error"]


def test_a_second_run_is_refused_in_one_line_and_the_first_loses_nothing(start, undisturbed, place):
    workdir, env = place
    first, out = start(workdir, env, wait_at=30)
    wait_until(out.with_name(f"{out.name}.waiting").exists, first)
    wait_until(lambda: owned_run.finished_steps(workdir) == [20], first)
    before = contents(workdir)
    trainer = owned_run.trainer(workdir)
    with pytest.raises(OwnerError) as refused:
        trainer.train(owned_run.batches, max_steps=owned_run.STEPS)
    owner = f"host {os.uname().nodename}, process {first.pid}, started 2"
    assert f"belongs to another run, which is running: {owner}" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert trainer.evaluate(lambda ctx: list(owned_run.batches(ctx))[:2], name="beside").step == 20
    after = contents(workdir).items()
    assert {path: digest for path, digest in after if "/eval_beside/" not in path} == before
    out.with_name(f"{out.name}.go").touch()
    assert first.wait()[0] == 0, first.printed
    assert owned_run.published(workdir) == undisturbed
    # it is free
    assert trainer.train(owned_run.batches, max_steps=owned_run.STEPS).start_step == owned_run.STEPS


def test_a_suspended_owner_on_another_machine_publishes_nothing_when_it_wakes_up(
    start, undisturbed, place, monkeypatch, caplog
):
    """It is stopped at step 30, perhaps while it writes the checkpoint of step 20. In a bucket that has its final name
    from the beginning, so such a write goes on amid the new run's; a restore finds it by its checksums."""
    workdir, env = place
    first, out = start(workdir, env, machine="far", wait_at=30, no_locks=True)
    wait_until(out.with_name(f"{out.name}.waiting").exists, first)
    first.send_signal(signal.SIGSTOP)
    wait_until(lambda: is_stopped(first), first)
    monkeypatch.setattr("trainer.checkpointing.owner.SILENCE_SECONDS", 1.0)
    result = owned_run.trainer(workdir).train(owned_run.batches, max_steps=owned_run.STEPS)
    after, last = contents(workdir), owned_run.published(workdir)
    out.with_name(f"{out.name}.go").touch()
    first.send_signal(signal.SIGCONT)
    assert first.wait()[0] == 2, first.printed
    new = f"was taken over by host {os.uname().nodename}, process {os.getpid()}, started"
    assert new in error_of(out)
    written = f"{workdir}/checkpoints/20/" if env else "nothing"
    changed = after.items() ^ contents(workdir).items()
    assert not [path for path, _ in changed if written not in path]
    for what in ("lines", "checkpoints"):
        assert last[what] == undisturbed[what]
    assert result.start_step in (0, 20)
    gone = f"workdir={workdir}: taken over from host {os.uname().nodename}, process {first.pid}, started"
    assert any(text.startswith(gone) for text in caplog.messages)


@pytest.mark.parametrize("seed", range(20 if SWEEP else 2))
def test_of_two_runs_that_start_at_once_one_trains_and_no_line_is_there_twice(
    start, undisturbed, place, seed
):
    workdir, env = place
    both = [start(workdir, env, pause=0.02) for _ in range(2)]
    codes = [process.wait()[0] for process, _ in both]
    assert sorted(codes) == [0, 2], [process.printed for process, _ in both]
    assert "belongs to another run" in error_of(both[codes.index(2)][1])
    assert owned_run.published(workdir) == undisturbed
    assert [start.step for start in read_history(workdir).starts] == [0]


CODES = {signal.SIGKILL: (-9, 0), signal.SIGTERM: (75, -15, 0), signal.SIGINT: (130, 0)}


@pytest.mark.parametrize("seed", range(29 if SWEEP else 1))
@pytest.mark.parametrize("number", CODES)
def test_a_run_that_is_ended_at_any_moment_resumes_to_the_same_bits(
    start, undisturbed, tmp_path, seed, number
):
    workdir = str(tmp_path / "run")
    process, _ = start(workdir, pause=0.02)
    wait_until(lambda: Path(workdir, "_owner/owner.json").exists(), process)
    time.sleep(random.Random(seed).uniform(0, 1.5))
    process.send_signal(number)
    assert process.wait()[0] in CODES[number]
    again, _ = start(workdir)
    assert again.wait()[0] == 0, again.printed
    found = owned_run.published(workdir)
    assert found["lines"] == undisturbed["lines"]
    last = [pages[owned_run.STEPS] for pages in (found["checkpoints"], undisturbed["checkpoints"])]
    assert last[0] == last[1]
