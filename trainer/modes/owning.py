"""Host 0 takes the work directory for all hosts of a training run, before they read, truncate or write in it."""

import shutil
from pathlib import Path

from pipeline.errors import HostError
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import join
from trainer.checkpointing.fenced import check_directory, remove_unfinished
from trainer.config import TrainerConfig
from trainer.modes.session import Session
from trainer.ownership.process import Process
from trainer.workdir import claim

__all__ = ["own"]


def own(session: Session, config: TrainerConfig) -> None:
    """Makes this run the owner of the work directory until the call ends. A fast_dev_run writes nothing and skips this.

    OwnerError if another training run owns it; OptionError or CheckpointError if it has something that no run made and
    that this one would replace or remove; on the other hosts, a HostError with that failure."""
    if config.fast_dev_run:
        return
    watchdog = session.watchdog
    store, key = watchdog.registry.store, watchdog.registry.key("owned")
    if store.index == 0:
        claim(str(config.workdir))
        check_directory(str(config.workdir))
        lost = session.ownership.take(lambda seconds: watchdog.wait(lambda: None, seconds))
        if lost:
            _shut_out(str(config.workdir), lost)
        if store.count > 1:
            store.put(key, "")
    elif watchdog.wait(lambda: store.get(key), 2 * config.stall_seconds) is None:
        raise HostError(f"host 0 of {store.count} did not start the same call within {2 * config.stall_seconds:g} s.")


def _shut_out(workdir: str, lost: Process) -> None:
    """Hides what a suspended owner is about to publish: it may wake up between its fence and its write. A checkpoint
    loses its temporary directory, an open event file its name."""
    remove_unfinished(workdir)
    if is_remote(workdir):
        return
    storage, directory = open_storage(workdir), join(workdir, "train")
    for name in storage.list(directory):
        if name.startswith("events.") and f".{lost.host}.{lost.pid}." in name:
            with storage.publish(join(directory, name)) as sink, Path(directory, name).open("rb") as file:
                shutil.copyfileobj(file, sink)
