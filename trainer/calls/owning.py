"""How a training takes its work directory: host 0 for all, before anything there is read, truncated or written."""

from pathlib import Path

from pipeline.shards.errors import HostError
from pipeline.shards.schemes import is_remote, open_storage
from pipeline.shards.storage import join
from trainer.calls.call import Call
from trainer.checkpointing.fenced import remove_unfinished
from trainer.config import TrainerConfig
from trainer.ownership.process import Process

__all__ = ["own"]


def own(call: Call, config: TrainerConfig) -> None:
    """The work directory is this run's until the call ends. A fast_dev_run writes nothing and needs none.

    OwnerError where another training owns it; on the other hosts the HostError that host 0 failed of it."""
    if config.fast_dev_run:
        return
    watchdog = call.watchdog
    store, key = watchdog.roll.store, watchdog.roll.key("owned")
    if store.index == 0:
        lost = call.ownership.take(lambda seconds: watchdog.wait(lambda: None, seconds))
        if lost:
            _shut_out(str(config.workdir), lost)
        if store.count > 1:
            store.put(key, "")
    elif watchdog.wait(lambda: store.get(key), 2 * config.stall_seconds) is None:
        raise HostError(f"host 0 of {store.count} did not begin the same call within {2 * config.stall_seconds:g} s.")


def _shut_out(workdir: str, lost: Process) -> None:
    """What a suspended owner was about to publish must not appear when it wakes up, even between its fence and its
    write: a checkpoint loses its temporary directory, and an event file that it has open its name."""
    remove_unfinished(workdir)
    if is_remote(workdir):
        return
    storage, directory = open_storage(workdir), join(workdir, "train")
    for name in storage.list(directory):
        if name.startswith("events.") and f".{lost.host}.{lost.pid}." in name:
            with storage.publish(join(directory, name)) as sink, Path(directory, name).open("rb") as file:
                while piece := file.read(1 << 20):
                    sink.write(piece)
