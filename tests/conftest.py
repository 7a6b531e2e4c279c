"""Raw data and conversions that several packages' tests share: tiny, made here, converted by the real command."""

import contextlib
import gc
import hashlib
import itertools
import logging
import os
import shlex
import sys
import tempfile
import threading
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

import fork_server as forks
import pytest
from fake_gcs.server import start
from fake_s3.server import start as start_s3
from program_cache import compile_all_alike, keep_programs, shared_cache
from raw_data.folders import RawImageFolder
from raw_data.imagenet import RawImagenet
from raw_data.pixels import RawMnist
from raw_data.records import prepare_tfds
from raw_data.tables import RawTables
from sweep import SWEEP

from converters import digits_raw, imagenet_to_gcs
from pipeline.inputs import batches
from pipeline.storage import gcs_calls
from pipeline.storage.schemes import open_storage

# What tests compile runs for milliseconds: neither LLVM's optimizations nor an MLIR pipeline for each fusion pay. Where
# bits of training are compared, processes of the fork server compile as a user's do.
XLA_FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
XLA_FLAGS += " --xla_cpu_parallel_codegen_split_count=1"  # up to 32 LLVM modules cost a seventh of a short training
if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11):
    XLA_FLAGS += (
        " --xla_cpu_use_fusion_emitters=false"  # newer ones do not know it, and end the process
    )
os.environ.setdefault("XLA_FLAGS", XLA_FLAGS)
# XLA's threads: on two cores, an all-reduce of four virtual devices hangs without some to spare.
os.environ.setdefault("NPROC", "16")
# Half of what a decoding graph's first run takes is a search for oneDNN's kernels, of which it uses none.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

# Of an endless order of a few records, tests read tens of rows: planning 4,096 costs more than all else that they do.
batches.PLANNED_ROWS = 64

pytest_plugins = ["hang_guard"]

_SERVERS = pytest.StashKey[contextlib.ExitStack]()

QUICK = "not slow"
COMPLETE = "python -m pytest -n 3 --dist loadfile -m ''"


def pytest_collection_modifyitems(items):
    """Leaves the tests marked `sweep` to .ci/sweep. Files with long tests first: what begins last must not be what ends
    last."""
    if not SWEEP:
        items[:] = [item for item in items if not item.get_closest_marker("sweep")]
    long = {
        item.path for item in items if item.get_closest_marker("slow") or "e2e" in item.path.parts
    }
    items.sort(key=lambda item: item.path not in long)


def pytest_terminal_summary(terminalreporter, config):
    """Says that it was the quick suite."""
    if config.option.markexpr == QUICK:
        terminalreporter.write_line(f"This was the quick suite. The complete one: {COMPLETE}")


def pytest_collection_finish():
    """Half a million objects of TensorFlow, JAX and Beam stay for good: no collection needs to look at them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _as_quiet_as_before():
    """A command that ran in this process, or in a fixture of it, let the loggers say more; other tests count lines."""
    yield
    for name in ("trainer", "pipeline", "absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def kept_programs():
    """What jax has compiled once, it finds again: most tests of the trainer compile the same step."""
    compile_all_alike()
    keep_programs(os.environ["KEPT_PROGRAMS"])


@pytest.hookimpl(wrapper=True)
def pytest_sessionstart(session):
    """One fork server for all of xdist's workers. What one process has compiled the next finds, whoever started it.

    A worker uses the cache from the start: modules may compile when they are collected."""
    stack = session.config.stash.setdefault(_SERVERS, contextlib.ExitStack())
    if not hasattr(session.config, "workerinput"):
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        os.environ["KEPT_PROGRAMS"] = (
            f"{directory}/compiled"  # as FORK_SERVER, also for the workers
        )
        cache = shared_cache(os.environ["KEPT_PROGRAMS"])
        # The repository's root on the path, as `python -m` has it; no proxy between processes of this machine.
        kept = {
            name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")
        }
        kept.pop("XLA_FLAGS")
        here = {
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "PYTHONUNBUFFERED": "1",
            "JAX_PLATFORMS": "cpu",
        }
        os.environ["FORK_SERVER"] = (
            f"{directory}/forks"  # xdist starts its workers with this environment
        )
        stack.enter_context(forks.serving(os.environ["FORK_SERVER"], kept | here | cache))
    else:
        keep_programs(os.environ["KEPT_PROGRAMS"])
    return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs):
    """xdist's workers are forked, too: importing everything takes ten seconds of a core in each."""
    for spec in specs:
        spec.python = shlex.join([sys.executable, forks.__file__, os.environ["FORK_SERVER"]])


def pytest_unconfigure(config):
    """After the workers have ended."""
    config.stash.get(_SERVERS, contextlib.ExitStack()).close()


@pytest.fixture(scope="session")
def fork_server():
    """Starts Python programs that find JAX, TensorFlow, Beam and the trainer imported."""
    with contextlib.closing(forks.ForkServer(os.environ["FORK_SERVER"])) as server:
        yield server


@pytest.fixture
def run_forked(fork_server, tmp_path):
    """run_forked(["-m", "module", ...], timeout=seconds, env=os.environ) -> (exit code, all that it printed)."""
    numbers = itertools.count()

    def run(command, timeout, env=None):
        return fork_server.run(
            command, tmp_path / f"printed-{next(numbers)}", env or os.environ, timeout
        )

    return run


@pytest.fixture(scope="session")
def tiny_tfds(tmp_path_factory):
    """A TFDS data_dir with the dataset "tiny" in it. Do not change it: copy."""
    directory = tmp_path_factory.mktemp("tfds")
    prepare_tfds(directory)
    return directory


@pytest.fixture
def without_beam(monkeypatch):
    """Conversions in this process take 0.05 s instead of 0.6 s. converters/test_contract.py compares their bytes with
    those that Beam writes, for every converter."""
    from stages import Stages

    from beam_jobs import graph

    monkeypatch.setattr(graph, "pipeline_of", Stages)


@pytest.fixture
def raw_image_folder(tmp_path):
    """A small image folder, not written yet, so that the test may change its `files`."""
    return RawImageFolder(tmp_path / "raw")


@pytest.fixture
def raw_mnist(tmp_path):
    """Small idx files, not written yet, so that the test may change its `images` and `labels`."""
    return RawMnist(tmp_path / "raw")


@pytest.fixture
def raw_tables(tmp_path):
    """Small tables, not written yet, so that the test may change its `images` and `tables`."""
    return RawTables(tmp_path / "raw")


@pytest.fixture
def raw_imagenet(tmp_path):
    """A small raw data set, written as tars, in a directory of its own."""
    return RawImagenet(tmp_path / "raw").write()


@pytest.fixture
def raw_folders(tmp_path):
    """The same raw data set as extracted folders."""
    return RawImagenet(tmp_path / "folders").write_folders()


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """(raw, out): the 1,797 digits as raw data and as shards of about 100 KB. Do not change them: copy."""
    raw, out = tmp_path_factory.mktemp("digits") / "raw", tmp_path_factory.mktemp("digits") / "out"
    digits_raw.write_raw(raw)
    imagenet_to_gcs.main(
        [
            f"--raw-data-dir={raw}",
            f"--gcs-output-path={out}",
            f"--label-file={raw}/synsets.txt",
            "--target-shard-bytes=100KB",
        ]
    )
    return raw, out


@pytest.fixture(scope="session")
def shard_digests():
    """Directory or gs:// path -> {name: sha256} of everything that has to be the same in equal conversions."""

    def digests(directory):
        storage = open_storage(str(directory))
        names = [
            name
            for name in storage.list(str(directory))
            if "-of-" in name or name == "manifest.json"
        ]
        names += [f"_index/{name}" for name in storage.list(f"{directory}/_index")]
        return {
            name: hashlib.sha256(storage.read(f"{directory}/{name}")).hexdigest()
            for name in sorted(names)
        }

    return digests


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory):
    """A real GCS server behind a gateway that can fail; one for all tests. Child processes reach it by its `env`."""
    with start(tmp_path_factory.mktemp("gcs")) as server:
        yield server


def _forget_client():
    gcs_calls.client().close()
    gcs_calls._client.cache_clear()
    gcs_calls._credentials.cache_clear()


@pytest.fixture(scope="session")
def open_bucket(gcs_server):
    """open_bucket("name"): a context with a new bucket, "gs://name", which clients in this process reach, too."""

    @contextlib.contextmanager
    def opened(name):
        gcs_server.make_bucket(name)
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in gcs_server.env.items():
                patch.setenv(variable, value)
            _forget_client()
            before = set(threading.enumerate())
            yield f"gs://{name}"
            gcs_server.reset()  # a request that stalls fails now, and is retried while the server can answer
            for thread in set(threading.enumerate()) - before:
                # Retries draw from the global `random`, which is an error of hypothesis while it makes an example.
                if thread.name.startswith("infeed-"):
                    thread.join(30)
                    assert not thread.is_alive(), thread
            _forget_client()

    return opened


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory):
    """A real S3 server that can fail; one for all tests. Child processes reach it by its `env`."""
    with start_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def forget_s3():
    """Has the next client made anew, from the environment."""
    from pipeline.storage import s3_client

    def forget():
        for cached in (s3_client.service, s3_client._store):
            cached.cache_clear()

    return forget


@pytest.fixture
def s3_bucket(s3_server, request, monkeypatch, forget_s3):
    """ "s3://name" of a new bucket of the test's own, which clients in this process reach, too; they retry at once."""
    from pipeline.storage import s3_client

    quick = {"init_backoff": timedelta(milliseconds=5), "max_backoff": timedelta(milliseconds=20)}
    monkeypatch.setattr(s3_client, "RETRIES", s3_client.RETRIES | {"backoff": quick | {"base": 2}})
    monkeypatch.setattr(s3_client, "WAIT_SECONDS", 0.01)
    name = f"bucket-{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]}"
    s3_server.make_bucket(name)
    for variable, value in s3_server.env.items():
        monkeypatch.setenv(variable, value)
    forget_s3()
    yield f"s3://{name}"
    s3_server.reset()
    forget_s3()


@pytest.fixture
def bucket(open_bucket, request):
    """ "gs://name" of a new bucket of the test's own."""
    with open_bucket(
        f"bucket-{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]}"
    ) as opened:
        yield opened
