"""Private names of libraries: one module of ours uses each of them, and a test says which library moved what.

A new version may rename any of them without notice. Then a row here fails, and names the library, its version, the name
and the module that has to change, before a user meets an AttributeError."""

import ast
import inspect
import platform
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
OURS = ("pipeline", "trainer", "converters", "beam_jobs")
UNMARKED = {"atomicity", "sync_global_processes"}  # private without an underscore
PUBLIC = {"_replace", "_asdict", "_current_frames", "_exit"}  # documented, of namedtuples, sys and os


class Private(NamedTuple):
    """`module`, the only one, uses `names` of `library`; `probe` uses them as it does, and fails where they moved."""

    library: str
    names: tuple[str, ...]
    module: str
    probe: Callable[[], object]


def coordination_service():
    from jax._src import distributed
    from jax._src.lib import _jax

    assert distributed.global_state.client is None  # this process is alone
    methods = ("set", "try_get", "dir_get", "delete")
    for method in ("blocking_key_value_get", *(f"key_value_{each}" for each in methods)):
        assert callable(getattr(_jax.DistributedRuntimeClient, method)), method


def factory_of_the_coordination_service():
    from jax._src import distributed
    from jaxlib import _jax

    assert distributed._jax is _jax
    called = inspect.getsource(distributed.State.initialize)
    assert "self.service = _jax.get_distributed_runtime_service(\n" in called
    assert "self.service.shutdown()" in inspect.getsource(distributed.State.shutdown)
    assert callable(_jax.DistributedRuntimeService.shutdown)


def contexts_of_orbax():
    from orbax.checkpoint._src.serialization import tensorstore_utils

    for context in (tensorstore_utils._BASE_TS_CONTEXT, tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT):
        assert isinstance(context, dict)


def saving_of_orbax():
    from orbax.checkpoint.path import atomicity

    for kind in (atomicity.CommitFileTemporaryPath, atomicity.AtomicRenameTemporaryPath):
        assert callable(kind.finalize)


def barriers_of_orbax():
    from jax.experimental import multihost_utils
    from orbax.checkpoint import CheckpointManager, multihost

    from trainer.activity import BARRIERS

    assert "multihost.sync_global_processes(" in inspect.getsource(CheckpointManager.save)
    assert multihost.sync_global_processes.__code__.co_filename.endswith(BARRIERS)
    assert multihost_utils.process_allgather.__code__.co_filename.endswith(BARRIERS)


def session_of_a_client():
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    client = storage.Client(project="none", credentials=AnonymousCredentials())
    assert callable(client._http.mount)
    client.close()


def buffer_of_an_upload():
    from google.cloud.storage import Blob, Bucket, Client
    from google.cloud.storage.fileio import BlobWriter

    # Called, as we do: otherwise the writer uploads when it is collected, and Python 3.13 reports that it cannot.
    writer = BlobWriter(Blob("object", Bucket(Client, "bucket")))
    writer._buffer.close()


def clients_of_dataflow():
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.dataflow.internal import apiclient

    flags = ["--no_auth", "--dataflow_endpoint=http://localhost:1", "--project=p", "--region=us-central1"]
    flags += ["--temp_location=gs://bucket/temp", "--staging_location=gs://bucket/staging", "--job_name=job"]
    client = apiclient.DataflowApplicationClient(PipelineOptions(flags))
    assert callable(client._jobs_client.list_jobs)
    assert callable(client._storage_client.get_bucket)


def grouping_on_dask():
    from apache_beam.runners.dask.overrides import _GroupByKeyOnly, dask_overrides

    replacements = [override.get_replacement_transform_for_applied_ptransform for override in dask_overrides()]
    assert replacements
    assert isinstance(_GroupByKeyOnly, type)


def worker_of_beam():
    from apache_beam.runners.portability.fn_api_runner.worker_handlers import SubprocessSdkWorkerHandler

    assert "self._worker_command_line = " in inspect.getsource(SubprocessSdkWorkerHandler.__init__)


def flags_of_beam():
    import argparse

    from apache_beam.options.pipeline_options import PipelineOptions

    parser = argparse.ArgumentParser(allow_abbrev=False)
    for options in PipelineOptions.__subclasses__():
        options._add_argparse_args(parser)
    assert parser.parse_known_args(["--job_name=a"])[0].job_name == "a"


def ends_of_python():
    import atexit
    import threading

    assert callable(atexit._run_exitfuncs)
    assert callable(threading._shutdown)


def release_of(library: str) -> str:
    return platform.python_version() if library == "Python" else version(library)


PRIVATE = [
    Private("Python", ("_run_exitfuncs", "_shutdown"), "trainer/exits.py", ends_of_python),
    Private("jax", ("jax._src",), "trainer/cluster/store.py", coordination_service),
    Private("jaxlib", ("_jax",), "trainer/cluster/service.py", factory_of_the_coordination_service),
    Private(
        "orbax-checkpoint",
        ("orbax.checkpoint._src.serialization", "_BASE_TS_CONTEXT", "_DEFAULT_OCDBT_TS_CONTEXT"),
        "trainer/checkpointing/orbax_paths.py",
        contexts_of_orbax,
    ),
    Private("google-cloud-storage", ("_http",), "pipeline/storage/gcs_calls.py", session_of_a_client),
    Private("google-cloud-storage", ("_buffer",), "pipeline/storage/gcs_upload.py", buffer_of_an_upload),
    Private("apache-beam", ("_jobs_client", "_storage_client"), "beam_jobs/dataflow.py", clients_of_dataflow),
    Private("apache-beam", ("_GroupByKeyOnly",), "beam_jobs/dask_runner.py", grouping_on_dask),
    Private("apache-beam", ("_add_argparse_args",), "converters/command_line.py", flags_of_beam),
    Private("apache-beam", ("_worker_command_line",), "beam_jobs/local_workers.py", worker_of_beam),
    # Their names have no underscore, but Orbax documents nothing of them.
    Private("orbax-checkpoint", ("atomicity",), "trainer/checkpointing/orbax_paths.py", saving_of_orbax),
    Private("orbax-checkpoint", ("sync_global_processes",), "trainer/activity.py", barriers_of_orbax),
]


@pytest.mark.parametrize("row", PRIVATE, ids=lambda row: f"{row.library}: {', '.join(row.names)}")
def test_a_private_name_is_still_where_our_module_looks_for_it(row):
    try:
        row.probe()
    except (ImportError, AttributeError, AssertionError) as error:
        moved = f"{row.library} {release_of(row.library)} has moved or changed {', '.join(row.names)}"
        pytest.fail(f"{moved}, which {row.module} uses: {error}")


def own_names() -> set[str]:
    """Private methods, attributes and fields of our classes."""
    found: set[str] = set()
    for package in OURS:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    found.add(node.name)
                elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
                    found.add(node.attr if isinstance(node, ast.Attribute) else node.id)
    return found


def private_names(path: Path, own: set[str]) -> Iterator[str]:
    """Private modules that a module of ours imports, private names from any, and private attributes of others."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            if any(part.startswith("_") and part != "__future__" for part in (node.module or "").split(".")):
                yield node.module or ""
            yield from (alias.name for alias in node.names if alias.name.startswith("_"))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if "._" in alias.name)
        elif isinstance(node, ast.Attribute) and not node.attr.startswith("__"):
            owner = ast.unparse(node.value)
            if node.attr.startswith("_") and (owner not in ("self", "cls", "other") or node.attr not in own):
                yield node.attr  # of self: one that it inherits from a library


def test_no_other_module_uses_a_private_name():
    own = own_names()
    allowed = {(row.module, name) for row in PRIVATE for name in row.names if name not in UNMARKED}
    used = {
        (str(path.relative_to(ROOT)), name)
        for package in OURS
        for path in (ROOT / package).rglob("*.py")
        for name in private_names(path, own)
        if name not in PUBLIC
    }
    assert used == allowed


def traced(function: Callable[..., object], *given: object) -> set[str]:
    """The names of the primitives in a traced function, as its text has them."""
    import jax

    return {equation.primitive.name for equation in jax.make_jaxpr(function)(*given).jaxpr.eqns}


def calls() -> Mapping[str, set[str]]:
    """The primitives that our module names -> those of a function that uses them."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas

    def kernel(read, written):
        written[...] = read[...]

    x, images = jnp.ones((4, 4)), jnp.ones((1, 4, 4, 1))
    axes = jax.sharding.PartitionSpec()
    mesh = jax.sharding.Mesh(jax.devices()[:1], "a")
    return {
        "dot_general": traced(jnp.matmul, x, x),
        "conv_general_dilated": traced(lambda x: jax.lax.conv(x, x, (1, 1), "SAME"), images),
        "cond": traced(lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x), x),
        "scan": traced(lambda x: jax.lax.scan(lambda c, row: (c, row), 0, x), x),
        "shard_map": traced(jax.shard_map(jnp.sin, mesh=mesh, in_specs=axes, out_specs=axes), x),
        "pallas_call": traced(pallas.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype)), x),
    }


def test_a_primitive_that_we_name_has_this_name_in_jax():
    """Where JAX renames one, FLOPs would not be counted."""
    found = calls()
    assert {name: made for name, made in found.items() if name not in made} == {}
    source = (ROOT / "trainer/loop/program.py").read_text()
    assert [name for name in found if f'"{name}"' not in source] == []
