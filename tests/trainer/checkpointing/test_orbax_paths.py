"""Orbax in a bucket through our own storage: neither TensorFlow nor gcsfs is asked for, and its retries are bounded."""

import pickle

import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath
from fake_gcs.server import Status

from pipeline.errors import StorageError
from pipeline.storage import gcs_calls
from trainer.checkpointing import orbax_paths
from trainer.checkpointing.orbax_paths import BucketPath, orbax_path


@pytest.fixture
def directory(bucket):
    return orbax_path(f"{bucket}/run")


@pytest.mark.parametrize("text", ["gs://bucket/dir/name", "gs://bucket"])
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


def test_a_local_path_is_an_ordinary_epath(tmp_path):
    assert type(orbax_path(str(tmp_path))) is type(epath.Path(tmp_path))


def test_bucket_directories_exist_from_creation_or_first_file_until_removal(directory):
    assert not directory.exists()
    directory.mkdir()
    assert directory.is_dir()
    assert list(directory.iterdir()) == []
    with pytest.raises(FileExistsError, match=r"gs://.*/run already exists"):
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
    options = ocp.CheckpointManagerOptions(max_to_keep=1)
    with ocp.CheckpointManager(directory, options=options) as manager:
        for step in (1, 2):
            manager.save(step, args=ocp.args.StandardSave({"a": np.arange(5) * step}))
        manager.wait_until_finished()
        restored = manager.restore(2, args=ocp.args.StandardRestore())
    assert restored["a"].tolist() == [0, 2, 4, 6, 8]
    assert ocp.utils.checkpoint_steps(directory) == [2]
    assert not [
        name for name in gcs_server.objects(directory.parts[1]) if name.startswith("run/1/")
    ]
    # TensorFlow, which a path of etils' own would take, asks Google's own address, by the proxy.
    assert not [
        request for request in gcs_server.requests() if request.host.endswith("googleapis.com")
    ]


def test_requests_of_orbax_are_retried_and_a_final_failure_is_named(
    directory, monkeypatch, gcs_server
):
    monkeypatch.setattr(gcs_calls, "WAIT_SECONDS", (0.01, 0.02))
    gcs_server.fail("run/file", Status(503), times=2)
    (directory / "file").write_text("text")
    monkeypatch.setattr(gcs_calls, "RETRY_SECONDS", 0.2)
    gcs_server.fail("run/file", Status(503), times=None)
    with pytest.raises(
        StorageError, match=r"cannot read gs://.*/run/file: status 503 \(\d+ attempts in 0\.2 s\)"
    ):
        (directory / "file").read_text()


def test_the_bound_on_tensorstores_retries_reaches_every_context_that_orbax_makes(bucket):
    orbax_path(f"{bucket}/run")
    for use_ocdbt in (True, False):
        spec = ocp.type_handlers.get_ts_context(use_ocdbt=use_ocdbt).spec.to_json()
        assert spec["gcs_request_retries"] == orbax_paths.TENSORSTORE_RETRIES, (
            "Orbax makes its contexts elsewhere"
        )
