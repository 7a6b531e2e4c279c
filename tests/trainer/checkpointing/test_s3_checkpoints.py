"""Checkpoints on s3://: arrays by tensorstore's own driver, the rest by our storage, all of it at the endpoint."""

import os
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from fake_s3.server import SECRET, Status
from jax.sharding import PartitionSpec as P
from orbax.checkpoint._src.serialization import tensorstore_utils

from pipeline.errors import CheckpointError, OptionError
from pipeline.storage import s3_client
from pipeline.storage.schemes import BUCKETS, open_storage
from trainer.checkpointing import tensorstore_specs
from trainer.checkpointing.listing import kinds
from trainer.checkpointing.manager import CheckpointManager, Saved
from trainer.checkpointing.tensorstore_specs import kvstore, prepare_orbax
from trainer.checkpointing.warm_start import WarmStart
from trainer.checkpointing.warm_start_loading import open_weights
from trainer.checkpoints import get_variable_value
from trainer.config import TrainerConfig
from trainer.trainer import Trainer

QUICK = {"max_retries": 2, "initial_delay": "10ms", "max_delay": "20ms"}


@pytest.fixture
def s3_config(s3_bucket, config):
    return lambda **settings: replace(config(**settings), workdir=f"{s3_bucket}/run")


@pytest.fixture
def clear_service(monkeypatch):
    """A process without variables or files of AWS."""
    for variable in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(variable)
    for variable in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(variable, "/dev/null/none")
    s3_client.service.cache_clear()
    yield monkeypatch
    s3_client.service.cache_clear()


def bits(state):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]


def objects(directory):
    """path -> content of every object below a directory, by our storage."""
    storage = open_storage(directory)
    files, directories = storage.entries(directory)
    paths = [f"{directory}/{name}" for name in files]
    found = {path: storage.read(path) for path in paths}
    for name in directories:
        found |= objects(f"{directory}/{name}")
    return found


def test_checkpoints_in_s3_are_kept_removed_listed_and_restored_on_other_devices(
    s3_config, s3_server, state_at, save
):
    settings = s3_config(keep_max=2)
    save(settings, 10, 20, 30, partition=P("model"), model=2)
    assert kinds(settings.workdir) == {"20": "finished", "30": "finished"}
    with CheckpointManager(settings) as checkpoints:
        restored = checkpoints.restore(30, state_at(devices=2, partition=P("data")))
    assert bits(restored.state) == bits(state_at(30))
    assert restored.input_state == {"position": 30}
    assert s3_server.requests("PUT .*/run/checkpoints/30/state/ocdbt.process_0/d/")  # tensorstore


def test_no_object_of_a_checkpoint_has_the_endpoint_or_a_secret(s3_config, s3_server, save):
    settings = s3_config()
    save(settings, 1)
    found = objects(settings.workdir)
    assert len(found) > 10
    for path, content in found.items():
        for text in (SECRET, s3_server.env["AWS_ACCESS_KEY_ID"] + "/", s3_server.url[7:]):
            assert text.encode() not in content, path


def test_a_run_in_s3_resumes_and_another_begins_with_its_arrays(
    s3_config, s3_bucket, dense_task, vector_input
):
    settings = s3_config()
    Trainer(dense_task, settings).train(vector_input, max_steps=1)
    assert Trainer(dense_task, settings).train(vector_input, max_steps=2).start_step == 1
    weights = get_variable_value(settings.workdir, "params/a")
    for place, name in (
        (settings.workdir, "a"),
        (f"{settings.workdir}/checkpoints/2/state", "variables/params/a"),
    ):
        np.testing.assert_array_equal(open_weights(place).read(name), weights)
    other = replace(settings, workdir=f"{s3_bucket}/other", fast_dev_run=1)
    start = WarmStart(init_from=settings.workdir)
    begun = Trainer(dense_task, other, warm_start=start).train(vector_input, max_steps=1)
    assert np.abs(np.asarray(begun.state.variables.params["a"]) - weights).max() < 0.1


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # of Orbax's other tasks, for which it does not wait
def test_arrays_that_the_service_refuses_are_one_line_without_the_settings_of_tensorstore(
    s3_config, s3_server, state_at, monkeypatch
):
    monkeypatch.setattr(tensorstore_specs, "RETRIES", QUICK)
    settings = s3_config()
    s3_server.fail("PUT .*/ocdbt.process_0/", Status(503), times=None)
    with (
        pytest.raises(
            CheckpointError, match=r"cannot write to s3://.*checkpoints: status 503"
        ) as told,
        CheckpointManager(settings) as checkpoints,
    ):
        checkpoints.save(Saved(1, state_at(1), {}, {}))
        checkpoints.settle(wait=True)
    assert "\n" not in str(told.value)
    assert "aws_credentials" not in str(told.value)
    assert kinds(settings.workdir) == {"1": "unfinished"}
    s3_server.reset()
    with CheckpointManager(settings) as checkpoints:
        assert checkpoints.resume_step() == 0
        checkpoints.save(Saved(1, state_at(1), {}, {}))
    assert kinds(settings.workdir) == {"1": "finished"}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, {"bucket": "name"}),
        ({"AWS_REGION": "eu-west-1"}, {"bucket": "name", "aws_region": "eu-west-1"}),
        (
            {"AWS_ENDPOINT_URL": "http://host:1/"},
            {"endpoint": "http://host:1/name", "aws_region": "us-east-1"},
        ),
        (
            {"AWS_ENDPOINT_URL": "http://no", "AWS_ENDPOINT_URL_S3": "https://host"},
            {"endpoint": "https://host/name", "aws_region": "us-east-1"},
        ),
        (
            {"AWS_ENDPOINT_URL": "https://host", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"},
            {"endpoint": "https://name.host", "aws_region": "us-east-1"},
        ),
    ],
    ids=", ".join,
)
def test_tensorstore_is_told_the_endpoint_of_the_bucket(env, expected, clear_service):
    for variable, value in env.items():
        clear_service.setenv(variable, value)
    spec = kvstore("s3://name/dir/")
    credentials = {"type": "default"}
    assert spec == {"driver": "s3", "path": "dir/", "aws_credentials": credentials} | expected
    clear_service.setenv("AWS_ACCESS_KEY_ID", "secret")
    assert kvstore("s3://name/dir/")["aws_credentials"] == {"type": "environment"}


def test_the_credentials_of_a_profile_reach_tensorstore_and_are_in_no_spec_or_message(
    s3_config, s3_server, save, monkeypatch, tmp_path, capfd
):
    settings = s3_config()
    (tmp_path / "credentials").write_text(
        "[team]\naws_access_key_id=of-a-team\naws_secret_access_key=its-secret\naws_session_token=t"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "team")
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(variable)
    s3_client.service.cache_clear()
    s3_client._store.cache_clear()
    s3_server.reset()
    save(settings, 1)
    written = s3_server.requests("PUT .*/ocdbt.process_0/")
    assert written
    assert all(request["signed"] for request in s3_server.requests())
    spec = kvstore(settings.workdir)
    assert "its-secret" in Path(spec["aws_credentials"]["credentials_file"]).read_text()
    printed = capfd.readouterr()
    for text in (str(spec), printed.out, printed.err):
        assert "its-secret" not in text
        assert "of-a-team" not in text
        assert "AuthCredentialsProvider" not in text


def test_each_kind_of_bucket_has_a_driver_of_tensorstore_with_bounded_retries(clear_service):
    assert tensorstore_specs.KVSTORES.keys() == BUCKETS.keys()
    for scheme in BUCKETS:
        driver = kvstore(f"{scheme}://name/dir/")["driver"]
        assert f"{driver}_request_retries" in tensorstore_specs.bounds()


def test_orbax_is_told_once_and_names_objects_of_s3_like_those_of_gs(clear_service):
    for _ in range(2):
        prepare_orbax("s3://name/dir")
    for use_ocdbt in (True, False):
        spec, like = (
            tensorstore_utils.build_kvstore_tspec(f"{scheme}://name/dir/[a]", use_ocdbt=use_ocdbt)
            for scheme in ("s3", "gs")
        )
        base, of_gcs = spec.pop("base", spec), like.pop("base", like)
        assert base["driver"] == "s3"
        assert base["path"] == of_gcs["path"]
        assert spec is base or spec == like
    disk = tensorstore_utils.build_kvstore_tspec("/dir", use_ocdbt=False)
    assert disk == {"driver": "file", "path": "/dir"}


@pytest.mark.parametrize("how", ["under another name", "without the function that we replace"])
def test_an_orbax_that_makes_its_specs_elsewhere_is_refused_before_anything_is_written(
    how, s3_config, s3_server, dense_task, vector_input, monkeypatch, tmp_path
):
    if how == "under another name":
        monkeypatch.delattr(tensorstore_utils, "build_kvstore_tspec")
    else:
        build = tensorstore_utils.build_kvstore_tspec
        monkeypatch.setattr(
            tensorstore_utils, "build_kvstore_tspec", getattr(build, "__wrapped__", build)
        )
        monkeypatch.setattr(tensorstore_specs, "_for_all_buckets", lambda build: build)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        OptionError, match=r"s3://.*: infeed cannot make orbax-checkpoint .* write to s3://"
    ):
        Trainer(dense_task, s3_config()).train(vector_input, max_steps=1)
    assert not s3_server.requests("^(PUT|POST) .*/run")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("workdir", ["s3:/bucket/run", "s3:///run", "r2://bucket/run"])
def test_what_is_no_place_in_a_bucket_is_refused(workdir):
    with pytest.raises(OptionError, match=r"neither a local directory nor in a bucket"):
        TrainerConfig(workdir=workdir, global_batch_size=1)
