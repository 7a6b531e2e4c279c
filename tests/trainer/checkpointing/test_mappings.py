"""Weights as timm, transformers and torchvision save them: small ones that these libraries made, with their logits
(tests/making/published/references.py), and what does not fit."""

import functools
import logging
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from published_models import FILES, NARROW, PUBLISHED, VIT, model_of
from safetensors.numpy import load_file, save_file

from trainer.checkpointing.mappings import MAPPINGS, Row, WeightMapping
from trainer.checkpointing.warm_start import WarmStart
from trainer.checkpointing.warm_start_finding import Array
from trainer.checkpointing.warm_start_loading import plan_loading
from trainer.checkpointing.weights import as_theirs, recognized
from trainer.mesh.placement import Placement
from trainer.nnx_task import nnx_task
from trainer.step.state import abstract_state

LOGITS = load_file(PUBLISHED / "logits.safetensors")


@functools.cache
def state(shape, size=32, classes=5):
    """The state of a task with this model, without numbers."""
    task = nnx_task(
        lambda rngs: model_of(shape, rngs, size, classes),
        lambda model, batch: (jnp.sum(model(batch["image"])), {}),
        optax.sgd(0.1),
    )
    spec = {"image": jax.ShapeDtypeStruct((4, size, size, 3), jnp.uint8)}
    return abstract_state(task, spec, Placement.of())


def loaded(path, shape, size=32, classes=5, **settings):
    """The arrays of the model that a warm start loads."""
    loading = plan_loading(WarmStart(init_from=str(path), **settings), state(shape, size, classes))
    return {name: loading.weights.read(saved) for name, saved in loading.names.items()}


@pytest.mark.parametrize("name", LOGITS)
def test_logits_are_those_of_the_library_that_wrote_the_weights(name, caplog):
    caplog.set_level(logging.INFO)
    file, size = name[:-3], int(name[-2:])
    arrays = loaded(PUBLISHED / f"{file}.safetensors", FILES[file], size)
    model = nnx.eval_shape(lambda: model_of(FILES[file], nnx.Rngs(0), size))
    flat = nnx.to_flat_state(nnx.state(model))
    named = {"/".join(map(str, path)): leaf for path, leaf in flat}
    for each, leaf in named.items():
        leaf.set_value(jnp.asarray(arrays[each]))
    nnx.update(model, nnx.from_flat_state(flat))
    model.eval()
    pixels = np.random.default_rng(size).integers(0, 256, (3, size, size, 3), np.uint8)
    logits = nnx.jit(lambda model, images: model(images))(model, pixels)
    np.testing.assert_allclose(logits, LOGITS[name], atol=1e-4)
    assert ("8 x 8 patches become 12 x 12" in caplog.text) == (size == 48)


def shapes(arrays):
    return {name: Array(array.shape, str(array.dtype)) for name, array in arrays.items()}


@pytest.mark.parametrize("file", FILES)
def test_published_weights_come_back_bit_by_bit(file):
    published = load_file(PUBLISHED / f"{file}.safetensors")
    arrays = loaded(PUBLISHED / f"{file}.safetensors", FILES[file])
    mapping = recognized(published.keys(), shapes(arrays))
    assert mapping
    back = as_theirs(mapping, arrays)
    assert back.keys() == published.keys()
    for name, array in published.items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
        assert back[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("mapping", MAPPINGS, ids=lambda mapping: mapping.name)
def test_a_mapping_is_recognized_in_what_it_writes_and_reads_it_bit_by_bit(mapping, tmp_path):
    shape = NARROW if "ResNet" in mapping.name else VIT
    if "without a class token" in mapping.name:
        shape = replace(shape, pooling="mean")
    variables = state(shape).variables
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.normal(size=leaf.shape).astype(np.float32)
        for name, leaf in (variables.params | variables.extra).items()
    }
    assert mapping.covers(arrays)
    written = as_theirs(mapping, arrays)
    assert recognized(written.keys(), shapes(arrays)) is mapping
    save_file(written, tmp_path / "model.safetensors")
    again = loaded(tmp_path / "model.safetensors", shape)
    assert again.keys() == arrays.keys()
    for name, array in arrays.items():
        assert again[name].tobytes() == array.tobytes(), name
