"""--runner=dask: the scheduler that runs a job, by its address or started here for this job alone.

Knows Beam's options; imports Dask only once a job is to run there."""

import contextlib
from argparse import Namespace
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from pipeline.shards.errors import ConversionError, OptionError

__all__ = ["check_options", "dask_flags", "running_cluster"]

_PACKAGE = "beam_jobs"
_PARTITIONS_PER_THREAD = 4  # so that a thread with small shards takes one more
_CONNECT_SECONDS = 10  # Dask's own patience is 30, with a port that refuses


def dask_flags(args: Namespace) -> Sequence[str]:
    """--local_processes in Beam's own words."""
    return (f"--direct_num_workers={args.local_processes}",)


def check_options(args: Namespace, options: Any) -> None:
    """Raises OptionError when workers are asked for here and elsewhere."""
    if _is_elsewhere(options) and args.local_processes > 1:
        raise OptionError(
            f"--local_processes={args.local_processes} starts a Dask cluster here, and its scheduler's address means "
            "another one. Leave out one of the two."
        )


@contextlib.contextmanager
def running_cluster(options: Any) -> Iterator[None]:
    """The scheduler is there, connected as this process's default client; a cluster of ours ends with the block.

    Raises ConversionError when no scheduler answers, or infeed is not installed there."""
    from apache_beam.options.pipeline_options import DirectOptions
    from apache_beam.runners.dask.dask_runner import DaskOptions
    from distributed import LocalCluster

    dask = options.view_as(DaskOptions)
    with contextlib.ExitStack() as stack:
        if not _is_elsewhere(options):
            workers = options.view_as(DirectOptions).direct_num_workers
            cluster = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address="127.0.0.1:0")
            stack.enter_context(cluster)
            dask.address = cluster.scheduler_address
        client = stack.enter_context(_connected(dask.get_all_options(drop_default=True, current_only=True)))
        _check_packages(client)
        if not (dask.npartitions or dask.partition_size):
            dask.npartitions = _PARTITIONS_PER_THREAD * max(2, sum(client.nthreads().values()))
        yield


def _connected(dask_options: dict[str, Any]) -> Any:
    from distributed import Client

    sizes = ("npartitions", "partition_size")
    where: dict[str, Any] = {name: value for name, value in dask_options.items() if name not in sizes}
    where.setdefault("timeout", _CONNECT_SECONDS)
    try:
        return Client(**where)
    except (OSError, TimeoutError, ValueError) as e:
        address = where.get("address") or where.get("scheduler_file")
        raise ConversionError(
            f"no Dask scheduler answers at {address}: {e}. Start one there (dask scheduler), or leave out the address: "
            "--local_processes=N starts a cluster here."
        ) from e


def _check_packages(client: Any) -> None:
    """The scheduler unpickles what the workers run, so it needs our packages as much as they do."""
    found = {client.scheduler.address: client.run_on_scheduler(find_spec, _PACKAGE), **client.run(find_spec, _PACKAGE)}
    lacking = sorted(address for address, spec in found.items() if spec is None)
    if lacking:
        raise ConversionError(
            f"the Dask scheduler or workers at {', '.join(lacking)} cannot import infeed. Install there what is "
            "installed here, and start them again."
        )


def _is_elsewhere(options: Any) -> bool:
    from apache_beam.runners.dask.dask_runner import DaskOptions

    dask = options.view_as(DaskOptions)
    return bool(dask.address or dask.scheduler_file)
