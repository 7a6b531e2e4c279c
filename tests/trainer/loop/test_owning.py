"""Before the hosts begin: one owner of the work directory, and positions that cannot be resumed."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from host_stores import stores_of

from pipeline.errors import FingerprintError
from trainer.checkpointing.manager import CheckpointManager, Saved
from trainer.checkpointing.owner import Ownership
from trainer.config import TrainerConfig
from trainer.hosts.exchange import SharedDecisions
from trainer.hosts.exits import WATCHER
from trainer.hosts.supervisor import Supervisor
from trainer.inputs import InputInfo
from trainer.loop.session import Session, resumed_position
from trainer.trainer import Trainer


@pytest.fixture
def outcomes(config):
    """outcomes(count) -> for each of `count` hosts what `Session.own` returns: None, or the text of its error."""

    def run(count):
        settings, stores = config(), stores_of(count)
        hosts = [Supervisor(settings, store=store) for store in stores]

        def outcome(index):
            host, ownership = hosts[index], Ownership(settings.workdir)
            host.exchange.call = 0
            try:
                with WATCHER.watching(host), ownership, host.reporting():
                    decisions = SharedDecisions(host.exchange, host.asked_anywhere)
                    job: Any = SimpleNamespace(config=settings)
                    Session(job, host, decisions, CheckpointManager(settings), ownership).own()
            except Exception as error:
                return f"{type(error).__name__}: {error}"

        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(outcome, range(count)))

    return run


def test_an_owned_work_directory_is_one_error_on_every_host(outcomes, config):
    with Ownership(config().workdir) as owner:
        owner.take()
        first, second = outcomes(2)
    assert first.startswith(
        f"OwnerError: workdir={config().workdir} belongs to another run, which is running: host "
    )
    assert second == f"HostError: host 0 of 2 failed: {first.removeprefix('OwnerError: ')}"
    assert outcomes(2) == [None, None]


def test_a_fast_dev_run_does_not_take_ownership(dense_task, vector_input, config):
    with Ownership(config().workdir) as owner:
        owner.take()
        Trainer(dense_task, config(fast_dev_run=2)).train(vector_input)


NO_STATE: Any = None


class OtherOrder:
    """An input whose order is not the one that was saved."""

    def __init__(self, fingerprint):
        self.info = InputInfo({}, fingerprint)

    def restore(self, state):
        raise FingerprintError(
            "The saved position has streams=64, this input streams=96. Pass streams=64."
        )


def refusal(fingerprint="data", **now):
    then = TrainerConfig(workdir="w", global_batch_size=64, seed=1).to_json()
    this = TrainerConfig(**{"workdir": "w", "global_batch_size": 64, "seed": 1} | now).to_json()
    source: Any = OtherOrder(fingerprint)
    with pytest.raises(FingerprintError) as raised:
        resumed_position(
            source, Saved(20, NO_STATE, {"fingerprint": "data", "streams": 64}, then), this
        )
    return str(raised.value)


@pytest.mark.parametrize(
    ("now", "flags"),
    [
        ({"global_batch_size": 96}, "--global-batch-size 64"),
        ({"global_batch_size": 96, "seed": 2}, "--global-batch-size 64 --seed 1"),
    ],
)
def test_another_batch_size_or_seed_names_the_flags_to_resume_with(now, flags):
    message = refusal(**now)
    assert f"Resume with {flags} (global_batch_size=64" in message
    assert "begin in another --workdir (workdir): --init-from w (a WarmStart) keeps" in message


@pytest.mark.parametrize("now", [{"global_batch_size": 96}, {}])
def test_only_other_data_name_the_flags_of_the_data(now):
    flags = "resume with the --data-dir and --train-split that it was trained on"
    assert flags in refusal("other", **now)
    # such as hosts with records of their own, of which there were more
    assert flags not in refusal(**now)
