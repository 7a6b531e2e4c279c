"""A model begins with the arrays of a checkpoint of each format, compared array by array."""

import logging
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from jax.sharding import PartitionSpec
from safetensors.numpy import save_file

from pipeline.errors import CheckpointError, OptionError, StorageError
from trainer.checkpointing.warm_start import WarmStart
from trainer.checkpointing.warm_start_finding import find_checkpoint
from trainer.checkpointing.warm_start_loading import open_weights, plan_loading
from trainer.mesh.placement import Placement
from trainer.nnx_task import nnx_task
from trainer.step.state import abstract_state, init_state
from trainer.task import Task
from trainer.trainer import Trainer

SPEC = {"x": jax.ShapeDtypeStruct((16, 8), jnp.float32)}


class Net(nnx.Module):
    """Parameters and statistics; the head is new in other tasks."""

    def __init__(self, rngs, classes=3):
        self.body = nnx.Linear(8, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.head = nnx.Linear(8, classes, rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.relu(self.norm(self.body(x))))


def named(model):
    flat = nnx.to_flat_state(nnx.state(model))
    rng = np.random.default_rng(1)
    return {
        "/".join(path): rng.normal(size=leaf.get_value().shape).astype(np.float32)
        for path, leaf in flat
    }


ARRAYS = named(Net(nnx.Rngs(0)))


def nested(arrays):
    tree = {}
    for name, value in arrays.items():
        layer, _, leaf = name.partition("/")
        tree.setdefault(layer, {})[leaf] = jnp.asarray(value)
    return tree


@pytest.fixture(scope="module")
def task():
    def loss(model, batch):
        logits = model(batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]), logits

    def split(name, shape):
        return PartitionSpec("data") if name == "body/kernel" else PartitionSpec()

    return nnx_task(Net, loss, optax.contrib.schedule_free_sgd(0.1), partition=split)


@pytest.fixture(scope="module")
def fresh(task):
    """Makes the fresh state of the task, with averages. Its programs are compiled once."""
    placement = Placement.of()
    return (
        placement,
        init_state(task, 0, SPEC, placement, ema=True),
        abstract_state(task, SPEC, placement, True),
    )


def begun(task, fresh, path, **settings):
    placement, state, like = fresh
    return plan_loading(WarmStart(init_from=str(path), **settings), like).into(
        state, task, placement
    )


def loaded(state):
    return {
        name: np.asarray(leaf)
        for name, leaf in (state.variables.params | state.variables.extra).items()
    }


def assert_equal(state, arrays):
    found = loaded(state)
    assert found.keys() == arrays.keys()
    for name, value in arrays.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.fixture(scope="module")
def of_flax(tmp_path_factory):
    directory = tmp_path_factory.mktemp("flax")
    model = Net(nnx.Rngs(0))
    nnx.update(model, nested(ARRAYS))
    with ocp.StandardCheckpointer() as writer:
        writer.save(directory / "state", nnx.state(model))
        writer.save(directory / "linen", {"params": nested(ARRAYS)})
    return directory


def test_a_checkpoint_of_flax_nnx_is_loaded_into_every_array_in_its_sharding(task, fresh, of_flax):
    state = begun(task, fresh, of_flax / "state")
    assert_equal(state, ARRAYS)
    kernel = state.variables.params["body/kernel"]
    assert kernel.sharding == fresh[1].variables.params["body/kernel"].sharding
    assert kernel.addressable_shards[0].data.shape == (2, 8)


def test_averages_and_the_optimizer_begin_with_the_loaded_parameters(task, fresh, of_flax):
    state = begun(task, fresh, of_flax / "state")
    for name, average in state.ema.items():
        np.testing.assert_array_equal(average, ARRAYS[name])
        assert average is not state.variables.params[name]  # a step donates both
        np.testing.assert_array_equal(state.optimizer.z[name], ARRAYS[name])


def test_names_of_flax_linen_are_renamed(task, fresh, of_flax):
    assert_equal(begun(task, fresh, of_flax / "linen", init_rename=("params/*=*",)), ARRAYS)


def test_an_item_of_a_checkpoint_manager_is_found_by_its_newest_step(
    task, fresh, of_flax, tmp_path
):
    for step in (9, 10):
        (tmp_path / str(step)).mkdir()
    (tmp_path / "10" / "default").symlink_to(of_flax / "state")
    assert_equal(begun(task, fresh, tmp_path), ARRAYS)


def test_safetensors_in_several_files_and_with_layouts_of_torch_are_loaded(task, fresh, tmp_path):
    turned = {name: np.ascontiguousarray(value.T) for name, value in ARRAYS.items()}
    parts = [
        {
            name.replace("/", "."): value
            for name, value in turned.items()
            if name.startswith("body") == first
        }
        for first in (True, False)
    ]
    for number, part in enumerate(parts):
        save_file(part, tmp_path / f"model-{number}.safetensors")
    assert_equal(
        begun(task, fresh, tmp_path, init_rename=("*.*=*/*",), init_torch=("*/kernel",)), ARRAYS
    )


def test_a_new_head_is_left_out_and_keeps_its_fresh_values(task, fresh, tmp_path):
    other = {
        **ARRAYS,
        "head/kernel": np.ones((8, 5), np.float32),
        "head/bias": np.ones(5, np.float32),
    }
    save_file(other, tmp_path / "a.safetensors")
    kept = {name: value for name, value in loaded(fresh[1]).items() if name.startswith("head/")}
    for settings in ({"init_exclude": ("head/*",)}, {"init_mismatch": "skip"}):
        assert_equal(begun(task, fresh, tmp_path / "a.safetensors", **settings), {**ARRAYS, **kept})
    with pytest.raises(
        CheckpointError, match=r"2 arrays of another shape .*head/bias: F32 \[5\] in the check"
    ):
        begun(task, fresh, tmp_path / "a.safetensors")


def test_a_damaged_file_and_other_paths_are_errors(task, fresh, tmp_path):
    (tmp_path / "a.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"cannot read .*a\.safetensors: "):
        begun(task, fresh, tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.h5").touch()
    with pytest.raises(
        OptionError,
        match=r"other' is none that infeed can read \(it has: model\.h5\)\. Give a work",
    ):
        open_weights(str(tmp_path / "other"))
    with pytest.raises(OptionError, match="nowhere' does not exist. Give a work"):
        open_weights(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("text", ["", "{}", '{"tree_metadata": {"a": 1}}'])
def test_a_damaged_description_of_a_foreign_checkpoint_is_named(of_flax, tmp_path, text):
    shutil.copytree(of_flax / "state", tmp_path / "copy")
    (tmp_path / "copy/_METADATA").write_text(text)
    with pytest.raises(
        CheckpointError, match=r"copy/_METADATA(: it does not describe a tree| is not JSON)"
    ):
        open_weights(str(tmp_path / "copy"))


def still(task):
    """The task, with an optimizer that changes nothing."""
    return Task(task.init, task.loss_fn, optax.set_to_zero(), task.metrics)


def test_a_run_begins_with_another_runs_model_until_it_has_a_checkpoint_of_its_own(
    dense_task, vector_input, config, caplog
):
    caplog.set_level(logging.INFO, logger="trainer")
    first = config("first", ema_decay=0.5)
    trained = Trainer(dense_task, first).train(vector_input, steps=1).state
    second = Trainer(
        still(dense_task), config("second"), warm_start=WarmStart(init_from=first.workdir)
    )
    state = second.train(vector_input, max_steps=1).state
    jax.tree.map(np.testing.assert_array_equal, state.variables.params, trained.ema)
    assert f"init_from {first.workdir}/checkpoints/1: 2 loaded" in caplog.text
    caplog.clear()
    second.train(vector_input, max_steps=2)
    assert (
        f"init_from={first.workdir} is ignored: the work directory has a checkpoint" in caplog.text
    )
    assert "2 loaded" not in caplog.text
    weights = open_weights(f"{first.workdir}/checkpoints/1", ema=False)
    for name, value in trained.variables.params.items():
        np.testing.assert_array_equal(weights.read(name), value)


# Imported by the tests, as Keras takes seconds and other files of this process do without it.
LEAVES = [
    "dense/kernel",
    "dense/bias",
    "norm/gamma",
    "norm/beta",
    "norm/moving_mean",
    "norm/moving_variance",
]
NAMES = [f"net/{name}" for name in LEAVES]


@pytest.fixture(scope="module")
def model():
    import keras

    layers = [keras.layers.Dense(3, name="dense"), keras.layers.BatchNormalization(name="norm")]
    model = keras.Sequential([keras.Input((4,)), *layers], name="net")
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=weight.shape) for weight in model.get_weights()])
    return model


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    import tensorflow as tf

    directory = tmp_path_factory.mktemp("tf")
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    return tf.train.Checkpoint(model).save(str(directory / "ckpt"))


def test_all_weights_of_a_compiled_keras_model_are_read_and_nothing_of_its_optimizer(model, saved):
    weights = open_weights(saved)
    assert sorted(weights.arrays) == sorted(NAMES)
    for name, value in zip(NAMES, model.get_weights(), strict=True):
        assert (weights.arrays[name].shape, weights.arrays[name].dtype) == (value.shape, "float32")
        np.testing.assert_array_equal(weights.read(name), value)


def test_a_directory_means_its_newest_checkpoint(saved):
    assert sorted(open_weights(saved.rpartition("/")[0]).arrays) == sorted(NAMES)


def test_variables_with_equal_names_are_named_by_attributes(tmp_path):
    import tensorflow as tf

    module = tf.Module()
    module.parts = [tf.Variable(1.0), tf.Variable(2.0)]
    path = tf.train.Checkpoint(net=module).write(str(tmp_path / "ckpt"))
    weights = open_weights(path)
    assert {name: float(weights.read(name)) for name in weights.arrays} == {
        "net/parts/0": 1.0,
        "net/parts/1": 2.0,
    }


def test_a_damaged_checkpoint_is_an_error(tmp_path):
    (tmp_path / "ckpt.index").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"cannot read the TensorFlow checkpoint .*ckpt: "):
        open_weights(str(tmp_path / "ckpt"))


def test_a_tensorflow_checkpoint_in_a_directory_that_it_takes_for_a_pattern_says_so(
    saved, tmp_path
):
    copied = shutil.copytree(saved.rpartition("/")[0], tmp_path / "[0.1]")
    with pytest.raises(CheckpointError, match=r"TensorFlow takes \[ and \\ for patterns: copy it"):
        open_weights(str(copied))


ORBAX = {"_METADATA": b"{}", "d/": None, "d/one": b"1"}
FORMATS = {
    "model.safetensors": {"model.safetensors": b"1"},
    "several": {"several/": None, "several/a.safetensors": b"1", "several/b.safetensors": b"1"},
    "ckpt-1": {"ckpt-1.index": b"1", "ckpt-1.data-00000-of-00001": b"1"},
    "orbax": {"orbax/": None, **{f"orbax/{name}": data for name, data in ORBAX.items()}},
}
CASES = [
    (given, name)
    for given, files in FORMATS.items()
    for name, data in files.items()
    if data is not None
]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("given", "pipe"), CASES)
def test_init_from_refuses_a_named_pipe_by_its_name(tmp_path, given, pipe):
    for name, data in FORMATS[given].items():
        if data is None:
            (tmp_path / name).mkdir()
        elif name == pipe:
            os.mkfifo(tmp_path / name)
        else:
            (tmp_path / name).write_bytes(data)
    with pytest.raises(StorageError, match=rf"{pipe} is a directory or a device, not a file\."):
        find_checkpoint(str(tmp_path / given))
