"""The table of runners with short names: their class in Beam, their checks and their processes.

To add a runner, add a row, and a module if it needs code. Beam is imported only inside functions,
so that --help and --dry-run work without it."""

import contextlib
import importlib
import itertools
import socket
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from beam_jobs.converter import ConversionJob, Packer, Waiting
from beam_jobs.loopback import on_loopback
from beam_jobs.runners import dataflow, dataflow_job
from pipeline.checks import did_you_mean
from pipeline.console.console import Console
from pipeline.errors import ConversionError, InfeedError, OptionError
from pipeline.packages import how_to_install
from pipeline.sizes import GB, free_memory_bytes, num_cores
from pipeline.storage.schemes import open_storage

_SECONDS_PER_PROCESS = 15  # of work, because processes start 3 s later
_BYTES_PER_PROCESS = 2**30  # packing takes most: 550 MB of text, 300 MB of tables
_PROCESSES = "multi_processing"  # Beam's name
_CONNECT_SECONDS = 10  # Dask's default is 30, even if the port refuses connections
# Dask starts workers again; without any, a job waits no longer than this. By default, it waits
# forever
_WITHOUT_WORKERS = {"distributed.scheduler.no-workers-timeout": "15s"}
_NO_START = "Nanny failed to start"  # of Dask's error for a worker that died before it connected
_PACKAGE = "beam_jobs"
_PARTITIONS_PER_THREAD = 4  # to balance shards of different sizes
_PAGE = "docs/runners.md has both commands."
_Block = contextlib.AbstractContextManager[None]
_REASON_LENGTH = 160  # of each end
# in the text of an error from a job that started
_OF_A_JOB = ("[while running ", f"{InfeedError.__module__}.")


def _run_to_its_end(job: ConversionJob, options: Any, _console: Console, _waiting: Waiting) -> bool:
    from beam_jobs.graph import pipeline_of

    pipeline_of(job, options).run().wait_until_finish()
    return True


def _start_and_wait(job: ConversionJob, options: Any, _console: Console, _waiting: Waiting) -> bool:
    """Like _run_to_its_end, but raises ConversionError if the runner fails for a reason of its own,
    which may be of any class: there is no Java, no job server or a missing package, or its workers
    were lost."""
    from beam_jobs.graph import pipeline_of

    pipeline = pipeline_of(job, options)
    how = "failed"
    remedy = (
        "If it did not start, start its job service and give its address (--runner=portable "
        f"--job_endpoint=host:port), or choose another runner: {', '.join(RUNNERS)}. If it did, "
        "look at the log of its workers."
    )
    try:
        result = pipeline.run()
        how = "failed while the job ran"
        remedy = "Look at the log of its workers. The same command resumes."
        result.wait_until_finish()
    except Exception as e:
        if isinstance(e, InfeedError) or any(mark in str(e) for mark in _OF_A_JOB):
            raise
        reason = " ".join(f"{type(e).__name__}: {e}".split()).rstrip(".: >")
        if len(reason) > 2 * _REASON_LENGTH:  # it quotes a traceback, whose end is the cause
            reason = f"{reason[:_REASON_LENGTH]} ... {reason[-_REASON_LENGTH:]}"
        raise ConversionError(
            f"--runner={options.get_all_options()['runner']} {how}: {reason}. {remedy}"
        ) from e
    return True


@dataclass(frozen=True)
class Preset:
    """One runner: the full path of Beam's class, a line of help, and what a conversion does for it.

    check: raises OptionError for options that cannot work, given Beam's PipelineOptions, before
    anything is read. check_job: raises OptionError for a job that the runner cannot run, before any
    access to the output. around: a context in which the job runs. It may change Beam's options, and
    replace errors by clearer ones. run: runs a job and waits for its end. Returns False if it did
    not wait."""

    runner: str
    help: str = ""
    check: Callable[[Namespace, Any], None] = lambda _args, _options: None
    check_job: Callable[[ConversionJob], None] = lambda _job: None
    around: Callable[[ConversionJob, Any], _Block] = lambda *_: contextlib.nullcontext()
    run: Callable[[ConversionJob, Any, Console, Waiting], bool] = _run_to_its_end
    aliases: tuple[str, ...] = ()  # Beam's names for it, in lower case and without "runner"
    extra: str = "convert"  # our extra that installs it
    processes: bool = False  # supports --local-processes
    leaves: bool = False  # supports --detach and --cancel-on-interrupt: its jobs need no launcher
    quiet: bool = (
        False  # its workers write to our stderr, but only what the verdict reports as well
    )

    def flags(self, args: Namespace) -> Sequence[str]:
        """Defaults for Beam, which the user's own flags override."""
        if args.local_processes == 1 or not self.processes:
            return ()
        return (
            f"--direct_running_mode={_PROCESSES}",
            f"--direct_num_workers={args.local_processes}",
        )


def auto_processes(seconds: float, cores: int, free_bytes: int) -> int:
    """How many processes to start for work that takes one core this long: as many as there are
    cores and memory for, but one for less than 30 s."""
    return max(1, min(cores, free_bytes // _BYTES_PER_PROCESS, int(seconds / _SECONDS_PER_PROCESS)))


def num_processes(options: Any) -> int:
    """The number of local processes in Beam's options; 0 if it is still to be decided."""
    every = options.get_all_options()
    return every["direct_num_workers"] if every["direct_running_mode"] == _PROCESSES else 1


def _core_seconds(job: ConversionJob) -> float:
    """An estimate of the work. Of folders only the last is scanned, because listing all may take
    minutes."""
    rate = job.converter.core_seconds_per_gb
    last = job.sources[-1]
    if last.kind != "folder" or isinstance(job.converter, Packer):
        return sum(rate(source.uri) * source.bytes for source in job.sources) / GB
    rows = itertools.chain.from_iterable(job.converter.scan(open_storage(last.uri), last))
    return len(job.sources) * sum(rate(row.key) * row.size for row in rows) / GB


def _decide_processes(job: ConversionJob, options: Any) -> None:
    """Sets the number of local processes in Beam's options, unless a flag did."""
    from apache_beam.options.pipeline_options import DirectOptions

    direct = options.view_as(DirectOptions)
    if direct.direct_num_workers:
        return
    number = auto_processes(_core_seconds(job), num_cores(), free_memory_bytes())
    direct.direct_num_workers = number
    if number == 1:
        direct.direct_running_mode = "in_memory"


@contextlib.contextmanager
def _local_around(job: ConversionJob, options: Any) -> Iterator[None]:
    from beam_jobs.runners.local_workers import watched_workers

    _decide_processes(job, options)
    with on_loopback(), watched_workers():
        yield


def _check_portable(args: Namespace, options: Any) -> None:
    """Raises OptionError if the job service or its workers are not given, ConversionError if the
    service is down."""
    from apache_beam.options.pipeline_options import PortableOptions

    portable = options.view_as(PortableOptions)
    endpoint = portable.job_endpoint
    if not endpoint:
        raise OptionError(
            f"--runner={args.runner} needs --job_endpoint=host:port, the address of a job service. "
            f"To start one here: python -m beam_jobs.loopback job_service --port=8099. {_PAGE}"
        )
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal():
        raise OptionError(f"--job_endpoint={endpoint}: must be host:port, such as localhost:8099.")
    # Beam's default is its own image, which has none of our packages
    if not portable.environment_type:
        raise OptionError(
            f"--runner={args.runner} needs --environment_type: EXTERNAL with "
            "--environment_config=host:port, a worker pool in an environment that has infeed; or "
            f"DOCKER with --environment_config=IMAGE that has it. {_PAGE}"
        )
    if portable.environment_type == "EXTERNAL" and not (
        portable.environment_config or portable.environment_options
    ):
        raise OptionError(
            "--environment_type=EXTERNAL needs --environment_config=host:port, a worker pool. "
            f"{_PAGE}"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError as e:
        raise ConversionError(
            f"no job service answers at --job_endpoint={endpoint}: {e}. Start it, or correct it."
        ) from e


def _check_dask_options(args: Namespace, options: Any) -> None:
    """Raises OptionError if both local workers and another cluster are requested."""
    if _is_elsewhere(options) and args.local_processes > 1:
        raise OptionError(
            f"--local-processes={args.local_processes} starts a Dask cluster here, but a "
            "scheduler's address selects another cluster. Leave out one of the two."
        )


@contextlib.contextmanager
def _dask_cluster(job: ConversionJob, options: Any) -> Iterator[None]:
    """Connects this process's default client to the scheduler. A cluster started here stops at the
    end of the block.

    Raises ConversionError if no scheduler answers, or if infeed is not installed there."""
    from apache_beam.runners.dask.dask_runner import DaskOptions
    from dask import config
    from distributed import LocalCluster

    dask = options.view_as(DaskOptions)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_naming_deaths())
        if not _is_elsewhere(options):
            _decide_processes(job, options)
            stack.enter_context(config.set(_WITHOUT_WORKERS))
            cluster = LocalCluster(
                n_workers=num_processes(options),
                threads_per_worker=1,
                dashboard_address="127.0.0.1:0",
            )
            stack.enter_context(cluster)
            dask.address = cluster.scheduler_address
        client = stack.enter_context(
            _connected(dask.get_all_options(drop_default=True, current_only=True))
        )
        _check_packages(client)
        if not (dask.npartitions or dask.partition_size):
            dask.npartitions = _PARTITIONS_PER_THREAD * max(2, sum(client.nthreads().values()))
        yield


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


def _is_elsewhere(options: Any) -> bool:
    from apache_beam.runners.dask.dask_runner import DaskOptions

    dask = options.view_as(DaskOptions)
    return bool(dask.address or dask.scheduler_file)


RUNNERS: Mapping[str, Preset] = {
    "local": Preset(
        "apache_beam.runners.portability.fn_api_runner.FnApiRunner",
        "this machine, in one process or in --local-processes",
        around=_local_around,
        # Beam's DirectRunner also uses this class for our graph, but first tries to download
        # another runner.
        aliases=("direct", "switchingdirect", "fnapi"),
        processes=True,
        quiet=True,
    ),
    "dask": Preset(
        "beam_jobs.runners.dask_runner.ChainRunner",
        (
            "the Dask cluster of --dask_client_address, or one of --local-processes workers that "
            "ends with the command"
        ),
        check=_check_dask_options,
        around=_dask_cluster,
        extra="dask",
        processes=True,
        quiet=True,
    ),
    "dataflow": Preset(
        "apache_beam.runners.dataflow.dataflow_runner.DataflowRunner",
        "Google Cloud, with --project and --region (docs/runners.md)",
        check=dataflow.check,
        check_job=dataflow.check_job,
        around=dataflow.prepared,
        run=dataflow_job.run,
        extra="gcp",
        leaves=True,
    ),
    "portable": Preset(
        "apache_beam.runners.portability.portable_runner.PortableRunner",
        "the job service of --job_endpoint, with --environment_type for its workers",
        check=_check_portable,
        around=lambda *_: on_loopback(),  # --environment_type=LOOPBACK starts workers here
        run=_start_and_wait,
    ),
}


def find_runner(name: str) -> Preset:
    """The preset for a --runner, given its short name, Beam's name or its class; an empty preset
    for other classes.

    Imports the class, because this defines its options. Raises OptionError."""
    short = _short(name.rpartition(".")[2] if name.startswith("apache_beam.") else name)
    for key, preset in RUNNERS.items():
        if short in (key, *preset.aliases) or name == preset.runner:
            _load(preset.runner, key, preset.extra)
            return preset
    if "." in name:
        _load(name, name)
    else:
        from apache_beam.options.pipeline_options import StandardOptions

        known = StandardOptions.KNOWN_RUNNER_NAMES
        if short not in map(_short, known):
            hint = did_you_mean(name, {*RUNNERS, *known})
            raise OptionError(
                f"--runner={name}: no such runner.{hint} A class of your own: package.module.Class."
            )
    return Preset(name, run=_start_and_wait)


def _load(path: str, name: str, extra: str | None = None) -> None:
    module, _, attribute = path.rpartition(".")
    try:
        getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as e:
        problem = "cannot be imported. It must be a short name or package.module.Class"
        if extra:
            problem = f"needs more than is installed. Install it: {how_to_install(extra)}"
        raise OptionError(f"--runner={name} {problem}. ({e})") from e


def _short(name: str) -> str:
    return name.lower().removesuffix("runner")
