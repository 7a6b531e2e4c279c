"""Weights as timm, transformers and torchvision save them: small ones that these libraries made, with their logits
(tests/making/published/references.py), and what does not fit."""

import functools
import json
import logging
import pickle
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from published_models import FILES, NARROW, PUBLISHED, VIT, model_of
from safetensors.numpy import load_file, save, save_file

from pipeline.errors import InfeedError, OptionError
from trainer.checkpointing.mappings import MAPPINGS, Row, WeightMapping
from trainer.checkpointing.warm_start import WarmStart
from trainer.checkpointing.warm_start_finding import Array
from trainer.checkpointing.warm_start_loading import open_weights, plan_loading
from trainer.checkpointing.weights import as_ours, as_theirs, recognized
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
    if "avg" in mapping.name:
        shape = replace(shape, pooling="patches")
    variables = state(shape).variables
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.normal(size=leaf.shape).astype(np.float32)
        for name, leaf in (variables.params | variables.extra).items()
    }
    assert not mapping.differences(arrays)
    written = as_theirs(mapping, arrays)
    assert recognized(written.keys(), shapes(arrays)) is mapping
    save_file(written, tmp_path / "model.safetensors")
    again = loaded(tmp_path / "model.safetensors", shape)
    assert again.keys() == arrays.keys()
    for name, array in arrays.items():
        assert again[name].tobytes() == array.tobytes(), name


def test_fixed_positions_are_all_that_keeps_a_model_from_timms_layout():
    model = state(replace(VIT, pooling="mean", positions="sincos")).variables.params
    assert MAPPINGS[0].differences(model) == {"positions"}


TIMM = load_file(PUBLISHED / "timm_vit.safetensors")
BYTES = save(TIMM)
RESNET = load_file(PUBLISHED / "resnet_basic.safetensors")
ODD = np.zeros((73, 24), np.float32)
OTHER_SIZES = r"These are weights of ViT of timm: choose the model of their sizes"
NO_FILE = "It is truncated, or no file of safetensors: download or save it again"


def without(text):
    return {name: array for name, array in TIMM.items() if text not in name}


# content of the file, its name, the model, and what the error says
MISTAKES = {
    "a pickle": (pickle.dumps(TIMM), VIT, f"cannot read .*model.safetensors: .*{NO_FILE}"),
    "an archive of PyTorch": (b"PK\3\4" + bytes(99), VIT, NO_FILE),
    "a page of a server": (b"<!doctype html><html>404</html>", VIT, NO_FILE),
    "a pointer of Git LFS": (b"version https://git-lfs.github.com/spec/v1\n", VIT, NO_FILE),
    "an empty file": (b"", VIT, NO_FILE),
    "a truncated file": (BYTES[:-100], VIT, f"not fully covered. {NO_FILE}"),
    "a truncated header": (BYTES[:50], VIT, NO_FILE),
    "a file with more bytes": (BYTES + b"1", VIT, NO_FILE),
    "a ResNet for a ViT": (
        RESNET,
        VIT,
        r"not in the model \(bn1\.bias.* Recognized for this model: ViT of timm, ",
    ),
    "a ViT for a ResNet": (
        TIMM,
        NARROW,
        r"Recognized for this model: ResNet of timm and torchvision\. Rename",
    ),
    "a bottleneck for blocks": (
        load_file(PUBLISHED / "resnet_bottleneck.safetensors"),
        NARROW,
        r"30 arrays not in the model \(layer1\.0\.bn3.*These are weights of ResNet",
    ),
    "blocks for a bottleneck": (
        RESNET,
        FILES["resnet_bottleneck"],
        r"25 arrays not in the checkpoint \(stages/1/0/convs/3/kernel",
    ),
    "a deeper model": (TIMM, replace(VIT, layers=3), r"F32 \[2, 3, 8\] in .*float32 \[3, 3, 8\]"),
    "a shallower model": (
        TIMM,
        replace(VIT, layers=1),
        r"12 arrays not in the model \(blocks\.1\.",
    ),
    "a wider model": (TIMM, replace(VIT, width=48), OTHER_SIZES),
    "other patches": (TIMM, replace(VIT, patch=8), r"\(patches/kernel: F32 \[4, 4, 3, 24\] in"),
    "other dense layers": (TIMM, replace(VIT, dense=2), r"3 arrays of another shape .*layers/down"),
    "a model without a token": (TIMM, replace(VIT, pooling="mean"), "cls_token: F32"),
    "a model without positions": (
        TIMM,
        replace(VIT, pooling="mean", positions="sincos"),
        r"Recognized for this model: none\.",
    ),
    "a token that is missing": (without("cls_token"), VIT, r"not in the checkpoint \(token: "),
    "a layer that is missing": (without("blocks.0."), VIT, r"F32 \[1, 3, 8\] in .*\[2, 3, 8\] in"),
    "an array that is missing": (without("1.mlp.fc1.b"), VIT, r"\(layers/up/bias: F32 \[1, 96\]"),
    "another array": (
        TIMM | {"blocks.0.ls1.gamma": ODD},
        VIT,
        r"not in the model \(blocks\.0\.ls1",
    ),
    "rows that no three parts have": (
        TIMM | {"blocks.1.attn.qkv.weight": ODD},
        VIT,
        r"3 arrays of another shape .*key/kernel: F32 \[2, 24, 73\]",
    ),
    "another pooling": (
        load_file(PUBLISHED / "timm_avg_vit.safetensors"),
        VIT,
        r"These are weights of ViT of timm with global_pool='avg', vit=timm_avg: choose the model",
    ),
    "grey images": (
        TIMM | {"patch_embed.proj.weight": np.zeros((24, 1, 4, 4), np.float32)},
        VIT,
        r"patches/kernel: F32 \[4, 4, 1, 24\] in the checkpoint, float32 \[4, 4, 3, 24\]",
    ),
    "positions of a rectangle": (
        TIMM | {"pos_embed": np.zeros((1, 61, 24), np.float32)},
        VIT,
        r"positions: F32 \[1, 61, 24\]",
    ),
    "integers": (
        {name: array.astype(np.int8) for name, array in TIMM.items()},
        VIT,
        "24 arrays of another shape or kind of number",
    ),
    "names of a wrapper": (
        {f"module.{name}": array for name, array in TIMM.items()},
        VIT,
        r"Recognized for this model: ViT of timm, .* Rename others with init_rename, or",
    ),
    "names of nothing": ({"w": ODD}, VIT, r"1 array not in the model \(w: F32 \[73, 24\]\)"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_file_that_does_not_fit_is_one_line_and_no_pickle_is_loaded(
    mistake, tmp_path, monkeypatch
):
    content, shape, text = MISTAKES[mistake]
    monkeypatch.setattr(pickle, "loads", None)
    monkeypatch.setattr(pickle, "load", None)
    path = tmp_path / "model.safetensors"
    path.write_bytes(content if isinstance(content, bytes) else save(content))
    with pytest.raises(InfeedError, match=text) as caught:
        loaded(path, shape)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", ["", "/model-00001-of-00003.safetensors"])
def test_a_part_that_is_missing_is_named(tmp_path, given):
    for part in (1, 3):
        save_file(TIMM, tmp_path / f"model-0000{part}-of-00003.safetensors")
    text = r"has no model-00002-of-00003\.safetensors, one of 3 parts\. Give a directory that"
    with pytest.raises(OptionError, match=text):
        loaded(f"{tmp_path}{given}", VIT)


@pytest.mark.timeout(60)
def test_a_name_that_states_any_number_of_parts_is_refused_at_the_first_that_is_missing(tmp_path):
    save_file(TIMM, tmp_path / "model-1-of-99999999999.safetensors")
    with pytest.raises(
        OptionError, match=r"has no model-2-of-9{11}\.safetensors, one of 9{11} parts"
    ):
        loaded(tmp_path, VIT)


def test_the_parts_are_those_that_the_index_lists(tmp_path):
    first = {name: array for name, array in TIMM.items() if name < "n"}
    rest = {name: array for name, array in TIMM.items() if name not in first}
    save_file(first, tmp_path / "a.safetensors")
    save_file(TIMM, tmp_path / "consolidated.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    files = dict.fromkeys(first, "a.safetensors") | dict.fromkeys(rest, "b.safetensors")
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": files}))
    with pytest.raises(OptionError, match=r"has no b\.safetensors, one of 2 parts"):
        loaded(tmp_path, VIT)
    save_file(rest, tmp_path / "b.safetensors")
    assert len(loaded(tmp_path, VIT)) == 24
    for page in ({"weight_map": {"a": "../a.safetensors"}}, {"weight_map": 3}, [1]):
        index.write_text(json.dumps(page))
        with pytest.raises(InfeedError, match=r"index\.json: .* Copy it again, or remove it"):
            loaded(tmp_path, VIT)


@pytest.mark.parametrize("name", ["model.pt", "pytorch_model.bin"])
def test_a_pickle_is_refused_by_its_name(tmp_path, name):
    (tmp_path / name).write_bytes(pickle.dumps(TIMM))
    with pytest.raises(OptionError, match=r"Pickles, such as \.pt and \.bin, are never read"):
        loaded(tmp_path / name, VIT)


def test_half_precision_and_another_number_of_classes_are_loaded(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    half = {name: array.astype(np.float16) for name, array in TIMM.items()}
    save_file(half, tmp_path / "model.safetensors")
    arrays = loaded(tmp_path / "model.safetensors", VIT, classes=7)
    assert "its head/bias is F16 [5], the model's float32 [7], so the head is new" in caplog.text
    assert "model.safetensors: ViT of timm\n" in caplog.text
    assert not {"head/kernel", "head/bias"} & arrays.keys()
    np.testing.assert_array_equal(arrays["norm/scale"], half["norm.weight"])
    assert loaded(PUBLISHED / "timm_vit.safetensors", VIT, classes=7).keys() == arrays.keys()


def test_a_table_of_the_users_own_is_taken(tmp_path):
    with pytest.raises(
        OptionError, match=r"'layers/up'.*: theirs must have as many \* as ours, or"
    ):
        Row("a.*.*", "layers/up")
    rows = (Row("w.*", "layers/*", 1, 1), Row("b", "head/bias"), Row("scale.*", "scales"))
    mapping = WeightMapping("mine", rows)
    model = {"layers/up": np.arange(6.0).reshape(2, 3), "head/bias": np.ones(3)}
    model["scales"] = np.arange(2.0)  # of layers
    written = as_theirs(mapping, model)
    np.testing.assert_array_equal(written["w.up"], model["layers/up"].T)
    save_file(written, tmp_path / "model.safetensors")
    weights = as_ours(open_weights(str(tmp_path)), mapping, shapes(model))
    for name, array in model.items():
        np.testing.assert_array_equal(weights.read(name), array)
