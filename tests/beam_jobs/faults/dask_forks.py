"""Dask's workers forked from one process that has imported Beam, which takes each 3 s of a core otherwise."""

from multiprocessing import forkserver

import dask.config
from distributed.utils import get_mp_context

PRELOAD = ["distributed", "beam_jobs.runners.dask_runner", "beam_jobs.graph"]


def import_once() -> None:
    """Workers that this process starts from now on begin with the environment that it has now."""
    dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    get_mp_context().set_forkserver_preload(PRELOAD)


def stop() -> None:
    """Ends the process that forks, and waits for it."""
    forkserver._forkserver._stop()  # pyright: ignore[reportAttributeAccessIssue]
    dask.config.set({"distributed.worker.multiprocessing-method": "spawn"})
