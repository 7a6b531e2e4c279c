"""One conversion on every runner that runs here: the same bytes, whoever dies on the way; and one that loses data."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import apache_beam as beam
import dask_forks
import psutil
import pytest
from apache_beam.pipeline import PTransformOverride
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from dask.bag import Bag
from distributed import LocalCluster
from listeners import exposed, listeners
from raw_data.imagenet import RawImagenet
from stages import without_beam
from sweep import SWEEP

from beam_jobs.split.ledger import SourceSummary
from pipeline.errors import ConversionError

ROOT = Path(__file__).parents[2]
FAULTS = ROOT / "tests/beam_jobs/faults"
BY_INFEED = """
import os, sitecustomize, sys
from pipeline.commands.infeed import main
os.chdir(sys.argv[1])
sys.argv[1:2] = ["convert", "imagenet"]
main()
"""
SHARDS = ("--num-train-shards=5", "--num-validation-shards=2")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return RawImagenet(tmp_path_factory.mktemp("raw")).write()


@pytest.fixture(scope="module")
def golden(raw, tmp_path_factory, shard_digests):
    """What every runner has to write, as one process wrote it."""
    out = tmp_path_factory.mktemp("golden")
    raw.convert(out, *SHARDS)
    digests = shard_digests(out)
    assert len(digests) == 5 + 2 + 2 + 2
    return digests


@pytest.fixture
def converted(raw, tmp_path, shard_digests):
    """converted(flag, ...): the digests of a conversion in this process."""

    def convert(*flags):
        raw.convert(tmp_path / "out", *SHARDS, *flags)
        return shard_digests(tmp_path / "out")

    return convert


@pytest.fixture
def among_own_files(tmp_path):
    """A directory whose files have the names of our packages."""
    (tmp_path / "own").mkdir()
    for name in ("pipeline", "converters", "beam_jobs"):
        (tmp_path / "own" / f"{name}.py").write_text(
            "raise RuntimeError('a file of the user was imported')"
        )
    return tmp_path / "own"


@pytest.fixture
def run_command(run_forked, raw, tmp_path, among_own_files):
    """run_command(flag, ..., kill_at=""): (status, output) of `infeed` among the user's own files, which no process may
    import; the first process at kill_at is killed. fresh: in a process that has imported nothing. variables: of
    sitecustomize."""

    def run(*flags, kill_at="", fresh=False, **variables):
        options = f"--raw-data-dir={raw.directory} --label-file={raw.directory}/synsets.txt".split()
        options += [f"--gcs-output-path={tmp_path}/out", *SHARDS, *flags]
        kill = {"KILL_AT": kill_at, "KILL_ONE": str(tmp_path / "killed"), "KILL_ROOT": str(ROOT)}
        env = {**os.environ, **kill, **variables, "PYTHONPATH": str(FAULTS)}
        if fresh:
            command = [sys.executable, "-m", "converters.imagenet_to_gcs", *options]
            captured = {"capture_output": True, "text": True, "timeout": 120}
            ended = subprocess.run(command, check=False, env=env, **captured)
            status, output = ended.returncode, ended.stderr
        else:
            command = ["-c", BY_INFEED, str(among_own_files), *options]
            status, output = run_forked(command, timeout=120, env=env)
        assert (tmp_path / "killed").exists()
        return status, output

    return run


def test_worker_processes_write_the_same_bytes_and_listen_on_loopback_alone(converted, golden):
    with listeners() as found:
        assert converted("--local-processes=2") == golden
    assert len({port for _, port in found}) >= 4  # control, data, state, logs
    assert not exposed(found)


@pytest.mark.parametrize(
    "kill_at", ["half:train-00002-of-*5", *(["after:train.npy"] if SWEEP else [])]
)
def test_a_worker_process_that_dies_ends_the_command_and_the_next_goes_on(
    run_command, converted, golden, tmp_path, kill_at
):
    status, output = run_command("--local-processes=2", kill_at=kill_at)
    assert status == 2
    assert "error: a worker process died: Worker subprocess exited with return code" in output
    assert "Traceback" not in output
    assert not (tmp_path / "out/manifest.json").exists()
    with without_beam():
        assert converted() == golden


# By runner: flags, a word in the command of the processes that are killed, and modules that these import until they
# have their first record, in this order.
DIRECT = "* beam_jobs converters.imagenet pipeline.raw.jpeg beam_jobs.graph apache_beam grpc"
LOCAL = "* apache_beam grpc apache_beam.internal.pickler *.data_plane *.bundle_processor"
DASK = "* distributed tornado distributed.nanny distributed.worker apache_beam"
OURS = "beam_jobs.graph converters.imagenet.converter"
STARTS = {
    "direct": (["--local-processes=1"], "imagenet_to_gcs", f"{DIRECT} *.bundle_processor"),
    "local": (["--local-processes=2"], "sdk_worker_main", f"{LOCAL} {OURS}"),
    "dask": (["--runner=dask", "--local-processes=2"], "--multiprocessing-fork", f"{DASK} {OURS}"),
}
SAMPLE = [("dask", "*", True), ("local", "*.data_plane", False)]
if SWEEP:
    SAMPLE = [
        (runner, module, each)
        for runner, (_, _, modules) in STARTS.items()
        for module in modules.split()
        for each in (True, False)
    ]


@pytest.mark.parametrize(("runner", "module", "each"), SAMPLE)
def test_a_process_that_dies_while_it_starts_ends_the_command_or_is_started_again(
    run_command, converted, golden, shard_digests, tmp_path, runner, module, each
):
    """each: whether the processes after the first die, too."""
    flags, word, _ = STARTS[runner]
    begun = time.monotonic()
    kill = {"KILL_AT": f"import:{module}", "KILL_IN": word} | ({"KILL_EACH": "1"} if each else {})
    status, output = run_command(*flags, fresh=runner == "direct", **kill)
    assert time.monotonic() - begun < 60  # 30 on a machine with nothing else to do
    assert "Traceback" not in output
    if (runner, status) != ("dask", 0):
        expected = (-9, False) if runner == "direct" else (2, True)
        assert (status, "error: a worker process died: " in output) == expected, output
        assert not (tmp_path / "out/manifest.json").exists()
        with without_beam():
            converted()
    assert shard_digests(tmp_path / "out") == golden


def test_worker_processes_that_cannot_be_started_end_the_command_with_the_reason(
    converted, monkeypatch
):
    monkeypatch.setattr("beam_jobs.runners.local_workers._COMMAND", "exec /none/python")
    message = r"died: Worker subprocess exited with return code 127: .*/none/python.* \(-9 and 137"
    with pytest.raises(ConversionError, match=message):
        converted("--local-processes=2")


@pytest.fixture(scope="module")
def dask_workers(tmp_path_factory):
    """(the address of a scheduler with two worker processes, which no command started; the file of what they scan)."""
    scanned = tmp_path_factory.mktemp("dask") / "scanned"
    env = {"KILL_ROOT": str(ROOT), "PYTHONPATH": str(FAULTS), "SCANNED": str(scanned)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        dask_forks.import_once()
        cluster = LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address="127.0.0.1:0")
    with cluster:
        yield cluster.scheduler_address, scanned
    dask_forks.stop()


def test_dask_writes_the_same_bytes_scans_a_source_once_and_spreads_few(
    converted, golden, dask_workers, monkeypatch
):
    """Beam's own DaskRunner scans again in every partition that reads a sum, and has a partition a source."""
    groupby, partitions = Bag.groupby, []

    def counted(self, key):
        partitions.append(self.npartitions)
        return groupby(self, key)

    monkeypatch.setattr(Bag, "groupby", counted)
    address, scanned = dask_workers
    assert converted("--runner=dask", f"--dask_client_address={address}") == golden
    sources = scanned.read_text().split()
    assert len(sources) == len(set(sources)) == 4
    assert min(partitions) == 4 * 4


def test_dask_started_by_the_command_outlives_a_worker_and_ends_with_it(
    run_command, golden, tmp_path, shard_digests
):
    flags = ("--runner=dask", "--local-processes=2")
    status, output = run_command(*flags, kill_at="half:train-00002-of-*5")
    assert (status, shard_digests(tmp_path / "out")) == (0, golden), output
    assert "Traceback" not in output


def test_a_dask_cluster_without_our_packages_is_named(converted, dask_workers, monkeypatch):
    monkeypatch.setattr("beam_jobs.runners.dask_cluster._PACKAGE", "not_there")
    with pytest.raises(
        ConversionError, match=r"workers at tcp:.*, tcp:.*, tcp:.* cannot import infeed. Install"
    ):
        converted("--runner=dask", f"--dask_client_address={dask_workers[0]}")


def test_an_unreachable_dask_scheduler_is_one_clear_error(converted, free_port):
    address = f"tcp://127.0.0.1:{free_port}"
    message = f"no Dask scheduler answers at {address}: .*--local-processes=N starts a cluster here"
    client = f"--runner=dask --dask_client_address={address} --dask_connection_timeout=1"
    with pytest.raises(ConversionError, match=message):
        converted(*client.split())


@pytest.fixture
def job_service(fork_server, free_port, tmp_path, monkeypatch):
    """(flags for Beam's own job service and a pool of workers, each a process of its own; the pids of the two)."""
    ports = {"job_service": free_port, "worker_pool": unused_port()}
    monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
    # the pool starts `python`
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    running = []
    try:
        for (name, port), flag in zip(ports.items(), ("--port", "--service_port"), strict=True):
            command = ["-m", "beam_jobs.loopback", name, f"{flag}={port}"]
            running.append(fork_server.start(command, tmp_path / f"{name}.txt", os.environ))
        for port in ports.values():
            await_port(port)
        flags = f"--runner=portable --job_endpoint=localhost:{ports['job_service']}".split()
        flags += ["--environment_type=EXTERNAL"]
        flags += [f"--environment_config=localhost:{ports['worker_pool']}"]
        yield flags, [process.pid for process in running]
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            process.wait()


def unused_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def await_port(port):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("localhost", port)):
            return
        time.sleep(0.05)
    pytest.fail(f"nobody listens on {port}")


def test_a_portable_job_service_with_an_external_worker_pool_writes_the_same_bytes(
    converted, golden, job_service
):
    flags, services = job_service
    with listeners(*services) as found:
        assert converted(*flags) == golden
    assert len({port for _, port in found}) >= 6  # those of the services, and of the job
    assert not exposed(found)
    cards = [card for found in psutil.net_if_addrs().values() for card in found]
    addresses = {card.address for card in cards if card.family == socket.AF_INET}
    for address in addresses - {"127.0.0.1"}:
        for port in (int(flag.rpartition(":")[2]) for flag in flags if "localhost:" in flag):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((address, port), timeout=5)


def test_a_portable_job_without_its_worker_pool_is_one_error_with_the_cause(converted, job_service):
    message = r"failed while the job ran: .* refused.*\. Look at the log of its workers\. The same command resumes\.$"
    with pytest.raises(ConversionError, match=message):
        converted(*job_service[0], f"--environment_config=localhost:{unused_port()}")


class LosesSome(beam.DoFn):
    """Every third row or result; the summaries of the scan arrive, or they alone would give it away."""

    def start_bundle(self):
        self.seen = 0

    def process(self, element):
        self.seen += not isinstance(element[1], SourceSummary)
        if self.seen % 3 or isinstance(element[1], SourceSummary):
            yield element


class LossyGrouping(beam.PTransform):
    def expand(self, elements):
        return elements | beam.ParDo(LosesSome()) | beam.GroupByKey()


class LossyRunner(FnApiRunner):
    """Loses elements on their way into one grouping, and reports success."""

    step = ""

    def run_pipeline(self, pipeline, options):
        class AtStep(PTransformOverride):
            def matches(self, applied_ptransform):
                return applied_ptransform.full_label == LossyRunner.step

            def get_replacement_transform_for_applied_ptransform(self, applied_ptransform):
                return LossyGrouping()

        pipeline.replace_all([AtStep()])
        return super().run_pipeline(pipeline, options)


@pytest.mark.parametrize("step", ["by bucket", "by shard", "all"])
def test_a_runner_that_loses_elements_commits_nothing_and_leaves_nothing_that_is_trusted(
    converted, golden, tmp_path, monkeypatch, step
):
    monkeypatch.setattr(LossyRunner, "step", step)
    message = r"the runner lost or repeated data: .* No manifest was written"
    with pytest.raises(ConversionError, match=message):
        converted(f"--runner={__name__}.LossyRunner")
    assert not (tmp_path / "out/manifest.json").exists()
    with without_beam():
        assert converted() == golden
