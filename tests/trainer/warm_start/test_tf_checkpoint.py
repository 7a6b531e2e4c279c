"""The weights of a Keras model in a TensorFlow checkpoint, by name, also after it was compiled."""

import numpy as np
import pytest

from pipeline.errors import CheckpointError
from trainer.warm_start.loading import open_weights

# Imported by the tests, as Keras takes seconds and other files of this process do without it.
LEAVES = ["dense/kernel", "dense/bias", "norm/gamma", "norm/beta", "norm/moving_mean", "norm/moving_variance"]
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
    assert {name: float(weights.read(name)) for name in weights.arrays} == {"net/parts/0": 1.0, "net/parts/1": 2.0}


def test_a_damaged_checkpoint_is_an_error(tmp_path):
    (tmp_path / "ckpt.index").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"cannot read the TensorFlow checkpoint .*ckpt: "):
        open_weights(str(tmp_path / "ckpt"))
