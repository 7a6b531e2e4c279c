"""Host 0 takes the work directory for all hosts, which are threads here."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainer.checkpointing.manager import CheckpointManager
from trainer.cluster.exchange import Preemption, SharedDecisions
from trainer.cluster.host_watchdog import HostWatchdog
from trainer.cluster.store import LocalStore
from trainer.events.reports import EventWriter
from trainer.modes.session import Session
from trainer.ownership.owner_files import this_process
from trainer.ownership.ownership import Contender, Ownership, Times
from trainer.trainer import Trainer


@pytest.fixture
def outcomes(config, monkeypatch):
    """outcomes(count) -> for each of `count` hosts what `Session.own` returns: None, or the text of its error."""
    monkeypatch.setattr("trainer.cluster.host_watchdog.break_apart", lambda *_: None)

    def run(count):
        store, settings = LocalStore(), config()

        def outcome(index):
            view = store.view(index, count)
            preemption, ownership = Preemption(store=view), Ownership(settings.workdir)
            try:
                with HostWatchdog(4.0, store=view) as watchdog, ownership, watchdog.reporting():
                    decisions = SharedDecisions(watchdog.exchange, preemption)
                    Session(
                        job=SimpleNamespace(config=settings),
                        watchdog=watchdog,
                        preemption=preemption,
                        decisions=decisions,
                        checkpoints=CheckpointManager(settings),
                        ownership=ownership,
                    ).own()
            except Exception as error:
                return f"{type(error).__name__}: {error}"

        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(outcome, range(count)))

    return run


def test_an_owned_work_directory_is_one_error_on_every_host(outcomes, config):
    owner = Contender(config().workdir).take()
    first, second = outcomes(2)
    assert first.startswith(f"OwnerError: workdir={config().workdir} belongs to another run, which is running: host ")
    assert second == f"HostError: host 0 of 2 failed: {first.removeprefix('OwnerError: ')}"
    owner.release()
    assert outcomes(2) == [None, None]


def test_unfinished_writes_of_a_lost_owner_are_discarded(outcomes, config, monkeypatch):
    workdir = Path(config().workdir)
    far = replace(this_process(), machine="far")
    lost = Contender(str(workdir), Times(renew=1e9), here=far).take()
    checkpoints, train = workdir / "checkpoints", workdir / "train"
    (checkpoints / "10/state").mkdir(parents=True)
    (checkpoints / "10/contents").mkdir()
    (checkpoints / "20.orbax-checkpoint-tmp/state").mkdir(parents=True)
    monkeypatch.setattr("trainer.ownership.ownership.TIMES", Times(silence=0.05, poll=0.01))
    events = EventWriter(str(train))  # of this process, which has the host name and the pid of the lost one
    events.flush()
    before = next(train.iterdir()).read_bytes()
    assert outcomes(1) == [None]
    events.scalars(7, {"loss": 0.5})  # after it woke up
    events.close()
    assert [path.name for path in checkpoints.iterdir()] == ["10"]
    assert [path.read_bytes() for path in train.iterdir()] == [before]
    lost.release()


def test_a_fast_dev_run_does_not_take_ownership(dense_task, vector_input, config):
    owner = Contender(config().workdir).take()
    Trainer(dense_task, config(fast_dev_run=2)).train(vector_input)
    owner.release()
