"""infeed checkpoints: lists, shows and prints what is saved, on a disk and in a bucket."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load

from pipeline.errors import CheckpointError, OptionError
from pipeline.storage.schemes import open_storage
from trainer.checkpointing.manager import CheckpointManager, Saved
from trainer.checkpoints import (
    export_weights,
    get_variable_names,
    get_variable_value,
    latest_checkpoint,
    main,
)
from trainer.config import TrainerConfig
from trainer.mesh.placement import Placement
from trainer.task import TrainState, Variables

W = np.random.default_rng(0).standard_normal((8, 600)).astype(np.float32)


@pytest.fixture(scope="module", params=["disk", "bucket"])
def workdir(request, tmp_path_factory, open_bucket):
    """Of a run with checkpoints 10 and 20, of which 10 is the better one; w is cut in four."""
    if request.param == "disk":
        yield filled(str(tmp_path_factory.mktemp("tool") / "run"))
    else:
        with open_bucket("tool") as bucket:
            yield filled(f"{bucket}/run")


def filled(workdir):
    rows = Placement.of(jax.devices()).rows()
    variables = Variables({"a/b": {"w": jax.device_put(W, rows)}})
    state = TrainState(jnp.int32(20), variables, (), jnp.ones(3, jnp.bfloat16))
    sizes = {"global_batch_size": 32, "seed": 7}
    config = TrainerConfig(workdir=workdir, keep_best="accuracy", keep_best_mode="max", **sizes)
    with CheckpointManager(config) as checkpoints:
        for step, accuracy in ((10, 0.75), (20, 0.5)):
            checkpoints.save(Saved(step, state, {}, config.to_json()))
            checkpoints.record(step, {"accuracy": accuracy})
    return workdir


def largest_file(state):
    """That of w, which is in a file of its own."""
    return max(state.rglob("*/d/*"), key=lambda path: path.stat().st_size)


@pytest.fixture
def printed(workdir, capsys):
    """printed("--option") -> what main prints for it."""

    def run(*options):
        main([workdir, *options])
        return capsys.readouterr().out

    return run


def test_the_list_has_step_time_size_settings_evaluation_and_the_best(printed, workdir):
    entries = json.loads(printed("--json"))
    assert [(entry["step"], entry["best"]) for entry in entries] == [(10, True), (20, False)]
    assert entries[0]["evaluation"] == {"accuracy": 0.75}
    assert entries[1]["config"]["seed"] == 7
    assert entries[1]["mesh"]["processes"] == 1
    assert entries[1]["bytes"] > W.nbytes * 0.8
    assert latest_checkpoint(workdir) == 20
    text = " ".join(printed().split())
    assert "10 *best*" in text
    assert "accuracy 0.75" in text


def test_the_tree_has_names_dtypes_shapes_and_partitions(printed):
    arrays = json.loads(printed("--tree", "--json"))
    saved = arrays["variables/params/a/b/w"]
    assert (saved["dtype"], saved["shape"]) == ("float32", [8, 600])
    assert "'data'" in saved["partition"]
    text = printed("--tree", "--step=10")
    for part in ("variables/params/a/b/w", "bfloat16", "[8, 600]", "'data'"):
        assert part in text


def test_an_array_is_printed_cut_short_and_as_json_in_full(printed):
    name = "variables/params/a/b/w"
    text = printed(f"--print={name}")
    assert text.startswith(f"{name}: float32 [8, 600], step 20\n[[")
    assert "..." in text
    values = json.loads(printed(f"--print={name}", "--json"))["values"]
    np.testing.assert_array_equal(np.float32(values), W)
    assert json.loads(printed("--print=key", "--json", "--step=10"))["values"] == [1, 1, 1]
    assert "step: int32 [], step 10\n20" in printed("--print=step", "--step=10")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (["--print=variables/a/w"], OptionError, "no array 'variables/a/w'"),
        (["--step=11"], CheckpointError, "has no checkpoint of step 11"),
        (["--tree", "--print=key"], OptionError, "--tree and --print"),
    ],
)
def test_an_array_or_step_that_does_not_exist_is_one_clear_error(printed, options, error, text):
    with pytest.raises(error, match=text):
        printed(*options)


def test_python_names_and_reads_parameters_and_other_arrays_of_any_checkpoint(workdir):
    names = get_variable_names(workdir)
    assert names == ["params/a/b/w"]
    value = get_variable_value(workdir, "params/a/b/w", step=10)
    assert isinstance(value, np.ndarray)
    np.testing.assert_array_equal(value, W)
    checkpoint = f"{workdir}/checkpoints/10"
    every = get_variable_names(checkpoint, all_arrays=True)
    assert every == ["step", "variables/params/a/b/w", "key"]
    key = get_variable_value(checkpoint, "key", all_arrays=True)
    assert (key.dtype, key.tolist()) == (jnp.bfloat16, [1, 1, 1])


def test_the_path_of_a_checkpoint_may_lead_through_the_directory_above(tmp_path, monkeypatch):
    filled(str(tmp_path / "run"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    np.testing.assert_array_equal(get_variable_value("../run", "params/a/b/w"), W)


def test_python_reads_no_array_but_the_one_that_it_was_asked_for(tmp_path):
    workdir = filled(str(tmp_path / "run"))
    largest_file(tmp_path / "run/checkpoints/20/state").write_bytes(b"")
    assert get_variable_value(workdir, "step", all_arrays=True) == 20
    with pytest.raises(CheckpointError, match="variables/params/a/b/w of .*/20/state"):
        get_variable_value(workdir, "params/a/b/w")


def test_a_missing_array_step_or_checkpoint_is_one_clear_error_in_python(workdir, tmp_path):
    with pytest.raises(OptionError, match="has no array of the model .* 'params/a/w'"):
        get_variable_value(workdir, "params/a/w")
    with pytest.raises(OptionError, match="has no array 'keys'"):
        get_variable_value(workdir, "keys", all_arrays=True)
    with pytest.raises(CheckpointError, match=r"has no checkpoint of step 11\. It has: \[10, 20\]"):
        get_variable_names(workdir, step=11)
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        get_variable_names(str(tmp_path))


def test_damage_is_shown_in_the_list_and_never_printed_as_numbers(tmp_path, capsys):
    workdir = filled(str(tmp_path / "run"))
    data = largest_file(tmp_path / "run/checkpoints/20/state")
    octets = bytearray(data.read_bytes())
    octets[len(octets) // 2] ^= 1
    data.write_bytes(octets)
    (tmp_path / "run/checkpoints/10/contents/metadata").write_text("{")
    with pytest.raises(CheckpointError, match="variables/params/a/b/w of .*/20/state is damaged"):
        main([workdir, "--print=variables/params/a/b/w"])
    main([workdir, "--json"])
    assert "is not JSON" in json.loads(capsys.readouterr().out)[0]["damage"]


def test_weights_are_exported_from_a_disk_or_bucket_to_where_they_are(workdir):
    output = f"{workdir}.safetensors"
    assert export_weights(workdir, output, step="best") == 10
    content = open_storage(output).read(output)
    np.testing.assert_array_equal(load(content)["a/b/w"], W)
    assert json.dumps(json.dumps({"accuracy": 0.75}))[1:-1].encode() in content
    with pytest.raises(OptionError, match=r"run\.safetensors exists\. Remove it, or give another"):
        export_weights(workdir, output)
