"""--runner=dask: connects to a scheduler by its address, or starts a cluster here for one job.

Imports Dask and Beam only inside functions."""

import contextlib
from argparse import Namespace
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from pipeline.errors import ConversionError, OptionError

_PACKAGE = "beam_jobs"
_PARTITIONS_PER_THREAD = 4  # to balance shards of different sizes
_CONNECT_SECONDS = 10  # Dask's default is 30, even if the port refuses connections


def check_options(args: Namespace, options: Any) -> None:
    """Raises OptionError if both local workers and another cluster are requested."""
    if _is_elsewhere(options) and args.local_processes > 1:
        raise OptionError(
            f"--local_processes={args.local_processes} starts a Dask cluster here, but a scheduler's address selects "
            "another cluster. Leave out one of the two."
        )


@contextlib.contextmanager
def running_cluster(options: Any) -> Iterator[None]:
    """Connects this process's default client to the scheduler. A cluster started here stops at the end of the block.

    Raises ConversionError if no scheduler answers, or if infeed is not installed there."""
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
    """The scheduler unpickles the workers' code, so it needs our packages, too."""
    found = {client.scheduler.address: client.run_on_scheduler(find_spec, _PACKAGE), **client.run(find_spec, _PACKAGE)}
    lacking = sorted(address for address, spec in found.items() if spec is None)
    if lacking:
        raise ConversionError(
            f"the Dask scheduler or workers at {', '.join(lacking)} cannot import infeed. Install the packages "
            "of this environment there, and restart them."
        )


def _is_elsewhere(options: Any) -> bool:
    from apache_beam.runners.dask.dask_runner import DaskOptions

    dask = options.view_as(DaskOptions)
    return bool(dask.address or dask.scheduler_file)
