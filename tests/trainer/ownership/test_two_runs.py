"""Two trainings in one work directory, as processes: the first loses nothing, and a lost one publishes nothing.

With SWEEP=1 in the environment on every kind of storage."""

import contextlib
import hashlib
import json
import os
import signal
import time
from pathlib import Path

import owned_run
import pytest
from sweep import SWEEP

from pipeline.errors import OwnerError
from pipeline.storage.schemes import open_storage
from trainer.ownership.ownership import Times

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


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
    """{path: digest} of all files that were published, but the owners' records, which beat."""
    storage = open_storage(workdir)

    def below(directory):
        files, directories = storage.entries(directory)
        yield from (f"{directory}/{name}" for name in files)
        for name in directories:
            yield from below(f"{directory}/{name}")

    paths = (path for path in below(workdir) if "/_owner/" not in path and ".orbax-checkpoint-tmp" not in path)
    return {path: hashlib.sha256(storage.read(path)).hexdigest() for path in paths}


def error_of(out):
    return json.loads(out.read_text())["error"]


def test_a_second_run_is_refused_in_one_line_and_the_first_loses_nothing(start, undisturbed, tmp_path):
    workdir = str(tmp_path / "run")
    first, out = start(workdir, wait_at=30)
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
    assert {path: digest for path, digest in contents(workdir).items() if "/eval_beside/" not in path} == before
    out.with_name(f"{out.name}.go").touch()
    assert first.wait()[0] == 0, first.printed
    assert owned_run.published(workdir) == undisturbed
    assert trainer.train(owned_run.batches, max_steps=owned_run.STEPS).start_step == owned_run.STEPS  # it is free


@pytest.mark.parametrize("where", ["disk", "disk without locks", "bucket"] if SWEEP else ["disk without locks"])
def test_a_suspended_owner_on_another_machine_publishes_nothing_when_it_wakes_up(
    start, undisturbed, tmp_path, request, gcs_server, monkeypatch, caplog, where
):
    """Its clock is a day ahead. It is stopped at step 30, perhaps while it writes the checkpoint of step 20."""
    env = gcs_server.env if where == "bucket" else {}
    workdir = f"{request.getfixturevalue('bucket')}/run" if where == "bucket" else str(tmp_path / "run")
    first, out = start(
        workdir, env, machine="far", wait_at=30, days=1, proof=0.0, no_locks=where == "disk without locks"
    )
    wait_until(out.with_name(f"{out.name}.waiting").exists, first)
    first.send_signal(signal.SIGSTOP)
    wait_until(lambda: is_stopped(first), first)
    monkeypatch.setattr("trainer.ownership.ownership.TIMES", Times(0.1, 0.0, 1.0, 0.02))
    if where == "disk without locks":
        monkeypatch.setattr("fcntl.flock", owned_run.refuse)
    result = owned_run.trainer(workdir).train(owned_run.batches, max_steps=owned_run.STEPS)
    after = contents(workdir)
    out.with_name(f"{out.name}.go").touch()
    first.send_signal(signal.SIGCONT)
    assert first.wait()[0] == 2, first.printed
    assert f"was taken over by host {os.uname().nodename}, process {os.getpid()}, while" in error_of(out)
    assert contents(workdir) == after
    found = owned_run.published(workdir)
    assert (found["lines"], found["checkpoints"]) == (undisturbed["lines"], undisturbed["checkpoints"])
    assert result.start_step in (0, 20)
    gone = f"workdir={workdir}: taken over from host {os.uname().nodename}, process {first.pid}, started"
    assert any(text.startswith(gone) for text in caplog.messages)
