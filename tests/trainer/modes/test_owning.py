"""Before the hosts begin: one owner of the work directory, and positions that cannot be resumed."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.errors import FingerprintError
from trainer.checkpointing.manager import CheckpointManager, Saved
from trainer.cluster.exchange import Preemption, SharedDecisions
from trainer.cluster.host_watchdog import HostWatchdog
from trainer.cluster.store import LocalStore
from trainer.config import TrainerConfig
from trainer.events.reports import EventWriter
from trainer.inputs import InputInfo
from trainer.modes.session import Session, resumed_position
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


NO_STATE: Any = None


class OtherOrder:
    """An input whose order is not the one that was saved."""

    def __init__(self, fingerprint):
        self.info = InputInfo({}, fingerprint)

    def restore(self, state):
        raise FingerprintError("The saved position has streams=64, this input streams=96. Pass streams=64.")


def refusal(fingerprint="data", **now):
    then = TrainerConfig(workdir="w", global_batch_size=64, seed=1).to_json()
    this = TrainerConfig(**{"workdir": "w", "global_batch_size": 64, "seed": 1} | now).to_json()
    source: Any = OtherOrder(fingerprint)
    with pytest.raises(FingerprintError) as raised:
        resumed_position(source, Saved(20, NO_STATE, {"fingerprint": "data", "streams": 64}, then), this)
    return str(raised.value)


@pytest.mark.parametrize(
    ("now", "flags"),
    [
        ({"global_batch_size": 96}, "--global-batch-size 64"),
        ({"global_batch_size": 96, "seed": 2}, "--global-batch-size 64 --seed 1"),
    ],
)
def test_another_batch_size_or_seed_names_the_flags_to_resume_with(now, flags):
    assert f"Resume with {flags} (global_batch_size=64" in refusal(**now)


@pytest.mark.parametrize(("fingerprint", "now"), [("other", {"global_batch_size": 96}), ("data", {})])
def test_other_data_or_another_reader_name_the_flags_of_the_data(fingerprint, now):
    assert "resume with the --data-dir and --train-split that it was trained on" in refusal(fingerprint, **now)
