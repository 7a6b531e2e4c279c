"""Two trainings in one work directory, with the true waiting times: pairs that start 0, 1, 3 and 10 s apart, an owner
that is killed, and one on another machine that is suspended for good. On a disk, on one without locks, in a bucket."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import owned_run
import pytest
from fake_gcs.server import start

from pipeline.storage.schemes import open_storage

ROOT = Path(__file__).parents[3]
APART = (0, 1, 3, 10)
numbers = itertools.count()


def run(work, workdir, env, **options):
    """(process, path of its report)."""
    out = work / f"report-{next(numbers)}.json"
    command = [sys.executable, owned_run.__file__, workdir, str(out), json.dumps(options)]
    with Path(f"{out}.log").open("wb") as log:
        return subprocess.Popen(command, env=os.environ | env, stdout=log, stderr=log), out


def report(out):
    return json.loads(out.read_text())


def wait_for_owner(workdir, process):
    storage = open_storage(workdir)
    while not storage.list(f"{workdir}/_owner"):
        assert process.poll() is None
        time.sleep(0.05)


def started_apart(work, workdir, env, options, seconds):
    """The first's files are those of an undisturbed run; the second was refused within 5 s of its attempt."""
    pair = [run(work, workdir, env, pause=0.5, **options)]
    if seconds:
        wait_for_owner(workdir, pair[0][0])
        time.sleep(seconds)
    pair.append(run(work, workdir, env, pause=0.5, **options))
    codes = [process.wait() for process, _ in pair]
    reports = [report(out) for _, out in pair]
    assert sorted(codes) == [0, 2], (codes, reports)
    assert not seconds or codes == [0, 2]
    refused = reports[codes.index(2)]
    owner = pair[codes.index(0)][0].pid
    assert f", process {owner}, started" in refused["error"], refused
    assert refused["seconds"] < 5, refused


def killed(work, workdir, env, options):
    first, out = run(work, workdir, env, wait_at=30, **options)
    while not Path(f"{out}.waiting").exists():
        assert first.poll() is None
        time.sleep(0.05)
    first.kill()  # and not waited for: its parent is slow
    second, out = run(work, workdir, env, **options)
    assert second.wait() == 0
    log = Path(f"{out}.log").read_text()
    assert "taken over from" in log
    assert "no sign of life" not in log
    first.wait()


def suspended_elsewhere(work, workdir, env, options):
    """Taken over within 60 s; it publishes nothing when it wakes up."""
    first, out = run(work, workdir, env, machine="far", days=-1, wait_at=30, **options)
    while not Path(f"{out}.waiting").exists():
        assert first.poll() is None
        time.sleep(0.05)
    first.send_signal(signal.SIGSTOP)
    second, after = run(work, workdir, env, **options)
    assert second.wait() == 0
    assert 30 <= report(after)["seconds"] < 60, report(after)
    assert "has been silent for" in Path(f"{after}.log").read_text()
    before = owned_run.published(workdir)
    Path(f"{out}.go").touch()
    first.send_signal(signal.SIGCONT)
    assert first.wait() == 2
    assert f"was taken over by host {os.uname().nodename}, process {second.pid}" in report(out)["error"]
    assert owned_run.published(workdir) == before


def main():
    """Raises AssertionError at the first that is not as it should be."""
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (work / "gcs").mkdir()
        server, patch = stack.enter_context(start(work / "gcs")), stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in server.env.items():
            patch.setenv(name, value)
        server.make_bucket("owners")
        env = {"JAX_PLATFORMS": "cpu"}
        alone = str(work / "alone")
        assert run(work, alone, env)[0].wait() == 0
        undisturbed = owned_run.published(alone)
        for name, root, options in (
            ("disk", str(work), {}),
            ("disk without locks", str(work), {"no_locks": True}),
            ("bucket", "gs://owners", {}),
        ):
            rows = [(f"started {s} s apart", started_apart, (s,)) for s in APART]
            rows += [("killed", killed, ()), ("suspended elsewhere", suspended_elsewhere, ())]
            for row, check, arguments in rows:
                workdir, began = f"{root}/{name} {row}".replace(" ", "-"), time.monotonic()
                check(work, workdir, env, options, *arguments)
                found = owned_run.published(workdir)
                assert (found["lines"], found["checkpoints"]) == (undisturbed["lines"], undisturbed["checkpoints"])
                if check is started_apart:
                    assert found["points"] == undisturbed["points"]
                print(f"{name}, {row}: as it should be, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
