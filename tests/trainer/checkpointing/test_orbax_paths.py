"""Orbax in a bucket through our own storage: neither TensorFlow nor gcsfs is asked for, and its retries are bounded."""

import pickle
import re
import shutil

import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath
from sweep import SWEEP

from pipeline.errors import CheckpointError, OptionError
from trainer.checkpointing import tensorstore_specs
from trainer.checkpointing.manager import CheckpointManager, Saved
from trainer.checkpointing.orbax_paths import BucketPath, orbax_path
from trainer.checkpointing.warm_start import WarmStart
from trainer.checkpointing.warm_start_loading import open_weights
from trainer.checkpoints import get_variable_value, latest_checkpoint
from trainer.trainer import Trainer


@pytest.fixture(params=["bucket", "s3_bucket"])
def directory(request):
    return orbax_path(f"{request.getfixturevalue(request.param)}/run")


@pytest.mark.parametrize("text", ["gs://bucket/dir/name", "gs://bucket", "s3://bucket/dir"])
def test_a_bucket_path_keeps_its_text_and_class(text):
    path = orbax_path(text)
    assert str(path) == path.as_posix() == path.__fspath__() == text
    assert type(epath.Path(path)) is BucketPath
    assert epath.Path(path) == path
    assert str(path / "a" / "b") == f"{text}/a/b"
    assert type((path / "a").parent) is BucketPath
    assert (path / "a").parent == path == pickle.loads(pickle.dumps(path))
    assert path.absolute() is path
    assert path.is_absolute()


@pytest.mark.parametrize("name", ["run#1", "what?", "logs:/run"])
@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_name_that_orbax_would_cut_in_a_bucket_is_refused(scheme, name):
    with pytest.raises(OptionError, match=rf"{scheme}://bucket/.* has (#|\?|gs:/) in its name"):
        orbax_path(f"{scheme}://bucket/{name}")


@pytest.mark.parametrize("name", ["a\\b", "gs:"])
def test_a_directory_that_orbax_would_confuse_with_another_is_refused_before_it_exists(
    name, dense_task, vector_input, config, state_at, tmp_path
):
    refused = rf"{re.escape(name)}.* in its name, .*Choose another name"
    with pytest.raises(OptionError, match=refused):
        Trainer(dense_task, config(name)).train(vector_input, max_steps=1)
    assert not [*tmp_path.iterdir()]
    with CheckpointManager(config()) as checkpoints:
        checkpoints.save(Saved(1, state_at(1), {}, {}))
    copied = shutil.copytree(tmp_path / "run", tmp_path / name / "run")  # also to read
    with pytest.raises(CheckpointError, match=refused):
        get_variable_value(str(copied), "params/w")


# Orbax has patterns, and tensorstore addresses.
UNICODE = "éßΩяא日語한ไ😀ﬁİı\u00a0\u200b\u202e\u0301\ufffd\u2028\U000e0041"
CHARACTERS = (chr(code) for code in range(32, 127))
ANY = [f"{each}[{each}]{each}" for each in (*CHARACTERS, *UNICODE) if each not in "/\\"]


@pytest.mark.parametrize("name", ANY if SWEEP else ["[0.1]", "*?%20 é"])
def test_a_run_in_a_directory_of_any_name_resumes_and_is_read(
    name, dense_task, vector_input, config, tmp_path
):
    settings = config(f"{name}/run")  # a name of its own, and in the middle
    Trainer(dense_task, settings).train(vector_input, max_steps=1)
    trainer = Trainer(dense_task, settings)
    assert trainer.train(vector_input, max_steps=2).start_step == 1
    assert trainer.evaluate(vector_input).step == 2
    weights = get_variable_value(settings.workdir, "params/a")
    state = open_weights(f"{settings.workdir}/checkpoints/2/state")  # as plain Orbax
    np.testing.assert_array_equal(state.read("variables/params/a"), weights)
    start = WarmStart(init_from=settings.workdir)
    Trainer(dense_task, config(name), warm_start=start).train(vector_input, max_steps=1)
    assert latest_checkpoint(str(tmp_path / name)) == 1


def test_bucket_directories_exist_from_creation_or_first_file_until_removal(directory):
    assert not directory.exists()
    directory.mkdir()
    assert directory.is_dir()
    assert list(directory.iterdir()) == []
    with pytest.raises(FileExistsError, match=r"(gs|s3)://.*/run already exists"):
        directory.mkdir()
    directory.mkdir(exist_ok=True)
    assert (directory / "sub/file").write_text("text") == 4
    (directory / "note").write_bytes(b"note")
    assert sorted(directory.iterdir()) == [directory / "note", directory / "sub"]
    assert list(directory.glob("n*")) == [directory / "note"]
    assert (directory / "sub").is_dir()
    assert (directory / "sub/file").is_file()
    assert (directory / "sub/file").read_text() == "text"
    assert (directory / "note").read_bytes() == b"note"
    (directory / "note").unlink()
    assert not (directory / "note").exists()
    directory.rmtree()
    assert not directory.exists()
    directory.rmtree()


def test_orbax_saves_restores_lists_and_removes_through_bucket_path_only(directory, gcs_server):
    temporary = ocp.path.atomicity.CommitFileTemporaryPath  # on s3://, its own choice is a rename
    options = ocp.CheckpointManagerOptions(max_to_keep=1, temporary_path_class=temporary)
    with ocp.CheckpointManager(directory, options=options) as manager:
        for step in (1, 2):
            manager.save(step, args=ocp.args.StandardSave({"a": np.arange(5) * step}))
        manager.wait_until_finished()
        restored = manager.restore(2, args=ocp.args.StandardRestore())
    assert restored["a"].tolist() == [0, 2, 4, 6, 8]
    assert ocp.utils.checkpoint_steps(directory) == [2]
    assert not (directory / "1").exists()
    # TensorFlow, which a path of etils' own would take, asks Google's own address, by the proxy.
    assert not [
        request for request in gcs_server.requests() if request.host.endswith("googleapis.com")
    ]


def test_the_bound_on_tensorstores_retries_reaches_every_context_that_orbax_makes(bucket):
    orbax_path(f"{bucket}/run")
    for use_ocdbt in (True, False):
        spec = ocp.type_handlers.get_ts_context(use_ocdbt=use_ocdbt).spec.to_json()
        for driver in ("gcs", "s3"):
            assert spec[f"{driver}_request_retries"] == tensorstore_specs.RETRIES, (
                "Orbax makes its contexts elsewhere"
            )
