"""One owner of a work directory at any time: on a disk, on one without locks, and in a bucket."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from pipeline.errors import OptionError, OwnerError, StorageError
from pipeline.storage.schemes import open_storage
from trainer.checkpointing import owner
from trainer.checkpointing.owner import Ownership, is_alive, mark_workdir, read_record

OWNING = """
import os, sys
from trainer.checkpointing.owner import Ownership
Ownership(sys.argv[1]).take()
if os.fork() == 0:  # a child, which lives longer
    sys.stdin.read()
    os._exit(0)
print("it owns the directory", flush=True)
sys.stdin.read()
os._exit(0)
"""


@pytest.fixture(params=["disk", "disk without locks", "bucket", "s3_bucket"])
def workdir(request, tmp_path, monkeypatch):
    """A work directory on each kind of storage."""
    if "bucket" in request.param:
        return f"{request.getfixturevalue(request.param)}/run"
    if request.param == "disk without locks":
        monkeypatch.setattr("fcntl.lockf", unsupported)
    return str(tmp_path / "run")


def unsupported(*_):
    raise OSError(95, "Operation not supported")


@pytest.fixture
def elsewhere(monkeypatch):
    """elsewhere(workdir): owns it, as a process of another machine, whose locks are not seen here."""
    owned = []

    def take(workdir, **options):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, "_machine", lambda: "far")
            patch.setattr(owner, "_lock", lambda _: None)
            owned.append(Ownership(workdir))
            owned[-1].take(**options)
        return owned[-1]

    monkeypatch.setattr(owner, "POLL_SECONDS", 0.01)
    yield take
    for each in owned:
        each.__exit__()


def silent_after(monkeypatch, seconds):
    monkeypatch.setattr(owner, "SILENCE_SECONDS", seconds)


def test_a_second_run_is_refused_while_the_owner_lives_and_changes_nothing(tmp_path, bucket):
    for workdir in (str(tmp_path), f"{bucket}/run"):
        with Ownership(workdir) as first:
            first.take()
            before = read_record(workdir)
            with pytest.raises(OwnerError) as refused:
                Ownership(workdir).take()
            assert re.fullmatch(
                rf"workdir={workdir} belongs to another run, which is running: host {os.uname().nodename}, process "
                rf"{os.getpid()}, started 2\d\d\d-\d\d-\d\dT[\d:]{{8}}\+00:00\. Wait until it ends, end it .* or give "
                r"another workdir\.",
                str(refused.value),
            )
            assert read_record(workdir) == before
            first.fence()


def test_what_was_released_is_free_at_once_and_publishes_nothing_more(workdir, elsewhere):
    for _ in range(2):
        with Ownership(workdir) as own:
            own.take()
            own.fence()
        with pytest.raises(OwnerError):
            own.fence()
        elsewhere(workdir).__exit__()


def test_an_owner_on_another_machine_is_waited_for_and_refuses_once_it_shows_that_it_lives(
    workdir, elsewhere, monkeypatch
):
    far = elsewhere(workdir)
    assert is_alive(workdir, read_record(workdir)) is None  # unknown
    monkeypatch.setattr(owner, "RENEW_SECONDS", 0)
    with pytest.raises(OwnerError, match=rf"is running: host {os.uname().nodename}, process"):
        Ownership(workdir).take(pause=lambda _: (time.sleep(0.01), far.fence()))
    far.fence()


def test_an_owner_that_was_taken_over_publishes_nothing_more(
    workdir, elsewhere, monkeypatch, caplog
):
    first = elsewhere(workdir)
    first.fence()
    silent_after(monkeypatch, 0.3)
    with Ownership(workdir) as second:
        second.take()
        assert "taken over from host" in caplog.text
        for _ in range(2):
            with pytest.raises(
                OwnerError,
                match=r"was taken over by host .*\. This run writes nothing more, and ends",
            ):
                first.fence()
        first.__exit__()  # nor does its end free the directory
        second.fence()
        assert not read_record(workdir).released


@pytest.mark.parametrize("hours", [-24, 24])
def test_a_clock_that_is_wrong_costs_politeness_alone(tmp_path, elsewhere, monkeypatch, hours):
    first, true_time = elsewhere(str(tmp_path)), time.time
    monkeypatch.setattr(owner.time, "time", lambda: true_time() + 3600 * hours)
    waited = []
    if hours > 0:
        with Ownership(str(tmp_path)) as second:
            second.take()
            with pytest.raises(OwnerError, match="was taken over"):
                first.fence()
    else:
        with pytest.raises(OwnerError, match="is running"):
            monkeypatch.setattr(owner, "RENEW_SECONDS", -1e9)
            Ownership(str(tmp_path)).take(
                pause=lambda _: (waited.append(1), time.sleep(0.01), first.fence())
            )
        assert waited


def test_no_time_that_a_record_states_is_waited_for_longer_than_the_owner_may_be_silent(
    tmp_path, elsewhere, monkeypatch
):
    first = elsewhere(str(tmp_path))
    silent_after(monkeypatch, 0.3)
    record = json.loads((tmp_path / "_owner/owner.json").read_text()) | {"renewed": 1e300}
    (tmp_path / "_owner/owner.json").write_text(json.dumps(record))
    with Ownership(str(tmp_path)) as second:
        second.take()
        with pytest.raises(OwnerError, match="was taken over"):
            first.fence()


def test_a_lock_without_an_owner_is_waited_for_in_vain_and_then_named(tmp_path, monkeypatch):
    silent_after(monkeypatch, 0.3)
    monkeypatch.setattr(owner, "POLL_SECONDS", 0.05)
    mark_workdir(str(tmp_path))
    assert owner._lock(str(tmp_path))
    with pytest.raises(OwnerError, match=r"has held .*_owner/lock for 0\.3 s, but owns nothing"):
        Ownership(str(tmp_path)).take()
    owner._unlock(str(tmp_path))


def test_asking_whether_an_owner_lives_writes_nothing_and_follows_no_link(tmp_path):
    record = owner.Record("token", "host", owner._machine(), 1, "2026", 0.0)
    (tmp_path / "_owner").mkdir()
    assert is_alive(str(tmp_path), record) is None
    (tmp_path / "mine").touch()
    (tmp_path / "_owner/lock").symlink_to(tmp_path / "mine")
    assert is_alive(str(tmp_path), record) is None
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["_owner", "lock", "mine"]


def test_only_one_of_many_simultaneous_runs_becomes_the_owner(workdir):
    barrier, taken, refused = threading.Barrier(6), [], []

    def run():
        own = Ownership(workdir)
        barrier.wait()
        try:
            own.take(pause=lambda _: (_ for _ in ()).throw(OwnerError("another one is faster")))
            taken.append(own)
        except OwnerError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(taken), len(refused)) == (1, 5)
    taken[0].fence()
    taken[0].__exit__()


def test_a_damaged_record_is_replaced_and_a_missing_one_ends_the_run(tmp_path):
    with Ownership(str(tmp_path)) as own:
        own.take()
    (tmp_path / "_owner/owner.json").write_bytes(bytes(100))  # of a machine that lost its power
    with Ownership(str(tmp_path)) as own:
        own.take()
        (tmp_path / "_owner/owner.json").unlink()
        with pytest.raises(OwnerError, match="lost its record, so another run may own it"):
            own.fence()


def test_a_directory_that_cannot_be_reached_is_an_error_before_anything_is_published(tmp_path):
    with Ownership(str(tmp_path)) as own:
        own.take()
        directory = tmp_path / "_owner"
        directory.rename(tmp_path / "away")
        directory.touch()
        with pytest.raises((StorageError, OwnerError)):
            own.fence()
        directory.unlink()
        (tmp_path / "away").rename(directory)
        own.fence()


@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_an_owner_of_this_machine_lives_until_it_is_killed_also_suspended_and_its_child_does_not_count(
    tmp_path, request, where, monkeypatch
):
    workdir = str(tmp_path) if where == "disk" else f"{request.getfixturevalue('bucket')}/run"
    with subprocess.Popen(
        [sys.executable, "-c", OWNING, workdir], stdin=-1, stdout=-1, text=True
    ) as process:
        assert process.stdout.readline() == "it owns the directory\n"
        for number in (signal.SIGCONT, signal.SIGSTOP):
            process.send_signal(number)
            assert is_alive(workdir, read_record(workdir))
            with pytest.raises(OwnerError, match=f"is running: host .*, process {process.pid}, "):
                Ownership(workdir).take()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_alive(workdir, read_record(workdir)) is False
        with Ownership(workdir) as own:
            own.take(pause=lambda _: pytest.fail("it waits"))
        process.stdin.close()


def test_a_work_directory_keeps_its_mark_and_files_of_others_are_not_claimed(tmp_path):
    assert mark_workdir(str(tmp_path / "run")) == mark_workdir(str(tmp_path / "run"))
    assert mark_workdir(str(tmp_path / "run")) != mark_workdir(str(tmp_path / "other"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/segments.jsonl").touch()
    with pytest.raises(
        OptionError, match=r"has a file segments\.jsonl, which no run of infeed wrote"
    ):
        mark_workdir(str(tmp_path / "mine"))
    assert open_storage(str(tmp_path)).list(str(tmp_path / "mine")).keys() == {"segments.jsonl"}


@pytest.mark.parametrize("held", [BlockingIOError, PermissionError])  # POSIX allows both
def test_a_lock_that_another_process_holds_is_that_of_a_living_owner(tmp_path, monkeypatch, held):
    def lockf(*_):
        raise held

    with Ownership(str(tmp_path)) as owner:
        owner.take()
    found = read_record(str(tmp_path))
    assert is_alive(str(tmp_path), found) is False
    monkeypatch.setattr("fcntl.lockf", lockf)
    assert is_alive(str(tmp_path), found) is True
