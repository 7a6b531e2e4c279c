"""--runner=dask: the Dask cluster of an address, or one that ends with the command.

Beam and Dask are imported only inside functions."""

import contextlib
from argparse import Namespace
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from beam_jobs.converter import ConversionJob, Waiting
from beam_jobs.runners.processes import with_processes
from beam_jobs.runners.runner import Runner
from pipeline.console.console import Console
from pipeline.errors import ConversionError, OptionError

_CONNECT_SECONDS = 10  # Dask's default is 30, even if the port refuses connections
# Dask restarts workers; by default, a job without any waits forever
_WITHOUT_WORKERS = {"distributed.scheduler.no-workers-timeout": "15s"}
_NO_START = "Nanny failed to start"  # of Dask's error for a worker that died before it connected
_PACKAGE = "beam_jobs"
_PARTITIONS_PER_THREAD = 4  # to balance shards of different sizes


class DaskCluster(Runner):
    """Runs jobs on this process's default Dask client, connected to a scheduler."""

    name = "dask"
    beam_class = "beam_jobs.runners.dask_runner.ChainRunner"
    help = (
        "the Dask cluster of --dask_client_address, or one of --local-processes workers that ends "
        "with the command"
    )
    extra = "dask"
    has_processes = True
    quiet = True

    def check(self, args: Namespace, options: Any) -> None:
        """See Runner. Raises OptionError if both local workers and another cluster are
        requested."""
        if _is_elsewhere(options) and args.local_processes > 1:
            raise OptionError(
                f"--local-processes={args.local_processes} starts a Dask cluster here, but a "
                "scheduler's address selects another cluster. Leave out one of the two."
            )

    def run(self, job: ConversionJob, options: Any, console: Console, waiting: Waiting) -> bool:
        """See Runner. Raises ConversionError if no scheduler answers, if infeed is not installed
        there, or if a worker died."""
        from apache_beam.runners.dask.dask_runner import DaskOptions

        dask = options.view_as(DaskOptions)
        with contextlib.ExitStack() as stack:
            stack.enter_context(_naming_deaths())
            if not _is_elsewhere(options):
                job = with_processes(job, options, console)
                dask.address = stack.enter_context(_cluster(job.local_processes))
            client = stack.enter_context(
                _connected(dask.get_all_options(drop_default=True, current_only=True))
            )
            _check_packages(client)
            if not (dask.npartitions or dask.partition_size):
                dask.npartitions = _PARTITIONS_PER_THREAD * max(2, sum(client.nthreads().values()))
            return super().run(job, options, console, waiting)


def _is_elsewhere(options: Any) -> bool:
    from apache_beam.runners.dask.dask_runner import DaskOptions

    dask = options.view_as(DaskOptions)
    return bool(dask.address or dask.scheduler_file)


@contextlib.contextmanager
def _naming_deaths() -> Iterator[None]:
    from distributed.scheduler import KilledWorker, NoWorkerError

    try:
        yield
    except Exception as e:
        if not isinstance(e, KilledWorker | NoWorkerError) and _NO_START not in str(e):
            raise
        raise ConversionError(
            f"a worker process died: {e} Run the same command again to resume."
        ) from e


@contextlib.contextmanager
def _cluster(processes: int) -> Iterator[str]:
    """Starts a cluster of this many workers here, and yields its address. It stops at the end of
    the block."""
    from dask import config
    from distributed import LocalCluster

    with config.set(_WITHOUT_WORKERS):
        cluster: Any = LocalCluster(
            n_workers=processes, threads_per_worker=1, dashboard_address="127.0.0.1:0"
        )
        with cluster:
            yield cluster.scheduler_address


def _connected(dask_options: dict[str, Any]) -> Any:
    from distributed import Client

    where: dict[str, Any] = {"timeout": _CONNECT_SECONDS, **dask_options}
    for size in ("npartitions", "partition_size"):
        where.pop(size, None)
    try:
        return Client(**where)
    except (OSError, TimeoutError, ValueError) as e:
        raise ConversionError(
            "no Dask scheduler answers at "
            f"{where.get('address') or where.get('scheduler_file')}: {e}. Start one there (dask "
            "scheduler), or leave out the address: --local-processes=N starts a cluster here."
        ) from e


def _check_packages(client: Any) -> None:
    """Raises ConversionError if our packages are missing on a worker or on the scheduler, which
    unpickles the workers' code."""
    specs = {
        client.scheduler.address: client.run_on_scheduler(find_spec, _PACKAGE),
        **client.run(find_spec, _PACKAGE),
    }
    if lacking := sorted(address for address, spec in specs.items() if spec is None):
        raise ConversionError(
            f"the Dask scheduler or workers at {', '.join(lacking)} cannot import infeed. Install "
            "the packages of this environment there, and restart them."
        )
