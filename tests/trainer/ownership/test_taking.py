"""One owner of a work directory at any time: on a disk, on one without locks, and in a bucket."""

import re
import threading

import pytest

from pipeline.errors import OwnerError
from pipeline.storage.schemes import open_storage
from trainer.ownership.owner_files import OwnerFiles, this_process

SUSPENDED = 1e9  # seconds between two beats


def content(workdir):
    storage, directory = open_storage(workdir), f"{workdir}/_owner"
    return {name: storage.read(f"{directory}/{name}") for name in storage.list(directory)}


def test_a_second_run_is_refused_while_the_owner_lives_and_changes_nothing(workdir, contend):
    contend(workdir, renew=SUSPENDED)
    before = content(workdir)
    pid, host = this_process().pid, this_process().host
    with pytest.raises(OwnerError) as refused:
        contend(workdir, silence=0)
    assert re.fullmatch(
        rf"workdir={re.escape(workdir)} belongs to another run, which is running: host {host}, process {pid}, started "
        rf"2\d\d\d-\d\d-\d\dT[\d:]{{8}}\+00:00\. Wait until it ends, end it \(kill {pid} on {host}: .*\), or give "
        r"another workdir\.",
        str(refused.value),
    )
    assert content(workdir) == before


def test_a_second_run_is_refused_at_the_first_sign_of_a_remote_owner(workdir, contend):
    contend(workdir, "far")
    with pytest.raises(OwnerError, match=r"is running: host far, process \d+, started"):
        contend(workdir, silence=60)


def test_a_directory_that_was_released_is_free_at_once(workdir, contend):
    for machine in ("here", "far", "here"):
        taken = contend(workdir, machine, silence=60)
        assert taken.lost is None
        taken.release()


def test_an_owner_that_lost_its_lease_finds_out_before_it_publishes(workdir, contend):
    first = contend(workdir, "far", renew=SUSPENDED)
    first.fence()
    contend(workdir, "near", silence=0.02)
    with pytest.raises(OwnerError, match=r"was taken over by host near, process \d+, while this process was suspended"):
        first.fence()
    first.release()
    with pytest.raises(OwnerError, match="host near"):  # nor did its end free the directory
        contend(workdir, "third", silence=60)


def test_a_lease_that_was_released_publishes_nothing_more(workdir, contend):
    lease = contend(workdir)
    lease.fence()
    lease.release()
    with pytest.raises(OwnerError, match="was released"):
        lease.fence()


def test_an_owner_that_resumes_during_a_takeover_keeps_the_directory(workdir, contend, monkeypatch):
    """Its beat falls between the last look of the other and that one's record."""
    owner, create, tries = contend(workdir, "far", renew=SUSPENDED), OwnerFiles.create, []

    def late(self, number, record):
        tries.append(number)
        owner.fence()
        return create(self, number, record)

    monkeypatch.setattr(OwnerFiles, "create", late)
    with pytest.raises(OwnerError, match="host far"):
        contend(workdir, "near", silence=0.02, pause=lambda _: tries and owner.fence())
    assert tries == [2]
    owner.fence()
    assert list(content(workdir)) == ["000001.json"]


def test_only_one_of_many_simultaneous_runs_becomes_the_owner(workdir, contend):
    barrier, taken, refused = threading.Barrier(6), [], []

    def run(number):
        barrier.wait()
        try:
            taken.append(contend(workdir, f"host {number % 3}", silence=60))
        except OwnerError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(taken), len(refused)) == (1, 5)
    taken[0].fence()


def test_a_record_is_considered_alive_before_its_lease_has_begun(workdir, contend, monkeypatch):
    create, refused = OwnerFiles.create, []

    def seen_immediately(self, number, record):
        created = create(self, number, record)
        monkeypatch.setattr(OwnerFiles, "create", create)
        with pytest.raises(OwnerError, match="belongs to another run, which is running") as error:
            contend(workdir, silence=60)
        refused.append(error)
        return created

    monkeypatch.setattr(OwnerFiles, "create", seen_immediately)
    contend(workdir).fence()
    assert refused


@pytest.mark.parametrize("hours", [-24, 24])
def test_clocks_that_differ_by_a_day_do_not_affect_ownership(tmp_path, contend, hours):
    """Each by its own clock: one that beats is never taken over, one that is silent is after 0.02 s."""
    now = [1e6 + 3600.0 * hours]

    def clock():
        now[0] += 0.001
        return now[0]

    alive, silent = str(tmp_path / "alive"), str(tmp_path / "silent")
    contend(alive, "far")
    contend(silent, "far", renew=SUSPENDED)
    with pytest.raises(OwnerError):
        contend(alive, "near", silence=60, clock=clock)
    before = now[0]
    contend(silent, "near", silence=0.02, clock=clock)
    assert 0.02 <= now[0] - before < 0.1


def test_a_record_of_a_machine_that_lost_its_power_is_waited_for_and_replaced(tmp_path, contend, caplog):
    contend(str(tmp_path), "far").release()
    (tmp_path / "_owner/000001.json").write_bytes(bytes(1024))
    contend(str(tmp_path), silence=0.1)
    assert any("belongs to an unknown process, which has been silent for" in text for text in caplog.messages)
    assert f"workdir={tmp_path}: taken over from an unknown process, which is gone" in caplog.messages


def test_old_records_are_removed_and_their_numbers_never_come_again(tmp_path, contend):
    for _ in range(12):
        contend(str(tmp_path)).release()
    assert OwnerFiles(str(tmp_path)).numbers() == list(range(5, 13))


def test_a_directory_that_cannot_be_reached_is_an_error_before_anything_is_published(tmp_path, contend):
    lease, directory = contend(str(tmp_path), renew=SUSPENDED), tmp_path / "_owner"
    directory.rename(tmp_path / "away")
    directory.touch()
    with pytest.raises(OwnerError, match="cannot determine whether workdir=.* still belongs to this run: .* is a file"):
        lease.fence()
    directory.unlink()
    (tmp_path / "away").rename(directory)
    lease.fence()
    (directory / "000001.json").unlink()
    with pytest.raises(OwnerError, match="its _owner directory was removed, so another run may own it"):
        lease.fence()
