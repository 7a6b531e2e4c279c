"""Private names of libraries that we use are where we look for them. ruff's SLF001 keeps other modules from using any.

A new version may rename any of them without notice. Then a row here fails, and names the library, its version and our
module, before a user meets an AttributeError."""

import inspect
import pkgutil
import platform
from importlib.metadata import version

import pytest

JAX = "jax._src.distributed:"
JAXLIB = "jaxlib._jax:"
ORBAX = "orbax.checkpoint:"
ORBAX_SPECS = "orbax.checkpoint._src.serialization.tensorstore_utils"
DATAFLOW = "apache_beam.runners.dataflow.internal.apiclient:DataflowApplicationClient"
STORE = [f"key_value_{name}" for name in ("set", "try_get", "dir_get")]
# Library and our module -> names, some with a text that their source contains.
PRIVATE = {
    ("Python", "trainer/hosts/exits.py"): ["atexit:_run_exitfuncs", "threading:_shutdown"],
    ("jax", "trainer/hosts/exchange.py"): [f"{JAX}global_state"],
    ("jaxlib", "trainer/hosts/exchange.py"): [f"{JAXLIB}DistributedRuntimeClient.{name}" for name in STORE],
    ("orbax-checkpoint", "trainer/checkpointing/tensorstore_specs.py"): [
        f"{ORBAX_SPECS}:_BASE_TS_CONTEXT",
        f"{ORBAX_SPECS}:_DEFAULT_OCDBT_TS_CONTEXT",
        (f"{ORBAX_SPECS}:build_kvstore_tspec", "-> JsonSpec"),
        (f"{ORBAX_SPECS}:ArrayReadSpec", "= build_kvstore_tspec("),
        (f"{ORBAX_SPECS}:ArrayWriteSpec", "= build_kvstore_tspec("),
        (f"{ORBAX_SPECS}:get_sharding_tensorstore_spec", "= build_kvstore_tspec("),
        ("orbax.checkpoint._src.serialization.ocdbt_utils:merge_ocdbt_per_process_files", "ts_utils.build_kvstore_tspec("),
    ],
    ("orbax-checkpoint", "trainer/checkpointing/orbax_paths.py"): [
        f"{ORBAX}path.atomicity.CommitFileTemporaryPath.finalize",
        f"{ORBAX}path.atomicity.AtomicRenameTemporaryPath.finalize",
    ],
    ("google-cloud-storage", "pipeline/storage/gcs_calls.py"): ["google.cloud.storage:Client._http"],
    ("google-cloud-storage", "pipeline/storage/gcs_upload.py"): [
        ("google.cloud.storage.fileio:BlobWriter", "self._buffer = ")
    ],
    ("tensorflow", "pipeline/inputs/tf_iterator.py"): [
        ("tensorflow.python.data.ops.dataset_ops:NumpyIterator", "self._iterator = iter(dataset)"),
        ("tensorflow.python.data.ops.iterator_ops:OwnedIterator", "self._iterator_resource"),
        ("tensorflow.python.data.ops.from_tensor_slices_op:_TensorSliceDataset", "self._tensors = "),
        ("tensorflow.python.data.ops.from_tensors_op:_TensorDataset", "self._tensors = "),
        "tensorflow.python.data.ops.dataset_ops:DatasetV2._inputs",
    ],
    ("tensorflow", "pipeline/inputs/exact_ops.py"): ["tensorflow.python.framework.op_def_registry:get"],
    ("apache-beam", "beam_jobs/runners/dask_runner.py"): ["apache_beam.runners.dask.overrides:_GroupByKeyOnly"],
    ("apache-beam", "beam_jobs/runners/dataflow.py"): [
        (DATAFLOW, "self._jobs_client = "),
        (DATAFLOW, "self._storage_client"),
    ],
    ("apache-beam", "converters/command_line.py"): [
        "apache_beam.options.pipeline_options:StandardOptions._add_argparse_args"
    ],
}  # fmt: skip


@pytest.mark.parametrize(("library", "ours"), PRIVATE)
def test_a_private_name_is_still_where_our_module_looks_for_it(library, ours):
    for row in PRIVATE[library, ours]:
        name, source = (row, "") if isinstance(row, str) else row
        try:
            found = pkgutil.resolve_name(name)
            assert not source or source in inspect.getsource(found), source
        except (ImportError, AttributeError, AssertionError) as error:
            release = platform.python_version() if library == "Python" else version(library)
            pytest.fail(
                f"{library} {release} has moved or changed {name}, which {ours} uses: {error}"
            )
