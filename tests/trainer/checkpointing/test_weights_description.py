"""What timm's and transformers' files beside weights state: a run takes it, and is refused with another model."""

import json
from dataclasses import replace
from typing import Any

import pytest

from pipeline.errors import InfeedError
from trainer.checkpointing.weights_description import described
from trainer.commands.loading import parsed
from trainer.commands.recorded import as_trained
from trainer.models.pixels import STATISTICS
from trainer.recipes import imagenet_vit, images
from trainer.reports.segments import Invocation, Start, append
from trainer.trainer import Trainer

TIMM = {
    "architecture": "vit_small_patch16_224",
    "pretrained_cfg": {"input_size": [3, 224, 224], "mean": [0.5] * 3, "std": [0.5] * 3},
    "model_args": {"num_heads": 6},
}
TRANSFORMERS = {
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "size": {"height": 224, "width": 224},
}
CLIP = {"mean": [0.4815, 0.4578, 0.4082], "std": [0.2686, 0.2613, 0.2758]}


def write(directory, pages):
    """Describes the weights whose path is returned."""
    for name, page in pages.items():
        text = page if isinstance(page, str) else json.dumps(page)
        (directory / f"{name}.json").write_text(text)
    return str(directory / "model.safetensors")


OF_TRANSFORMERS = {
    "config": {"num_attention_heads": 6, "image_size": 384},
    "preprocessor_config": TRANSFORMERS | {"crop_size": 224},
}


@pytest.mark.parametrize("pages", [{"config": TIMM}, OF_TRANSFORMERS], ids=["timm", "transformers"])
def test_another_normalization_and_other_heads_than_those_of_the_weights_are_refused(
    tmp_path, pages
):
    stated = described(write(tmp_path, pages), STATISTICS)
    assert (stated.normalization, stated.heads) == ("inception", 6)
    assert stated[1:] == described(str(tmp_path), STATISTICS)[1:]  # the directory
    for heads in (6, None):
        stated.check("inception", heads)
    with pytest.raises(InfeedError, match=r"mean \[0.5, .*Set normalization=inception\."):
        stated.check("imagenet", 6)
    with pytest.raises(InfeedError, match="weights have 6 heads, and the model has 12, which the"):
        stated.check("inception", 12)


def test_weights_without_a_description_fit_any_model(tmp_path):
    for pages in ({}, {"config": {"hidden_size": 24, "num_heads": [3, 6]}}):
        stated = described(write(tmp_path, pages), STATISTICS)
        stated.check("imagenet", 6)
        assert str(stated).startswith("no config.json or preprocessor_config.json states which")


@pytest.mark.parametrize(
    ("size", "side"),
    [
        (224, 224),
        ([3, 224, 224], 224),
        ({"height": 160, "width": 160}, 160),
        ({"shortest_edge": 256}, 256),
        ([3, 224, 448], None),
        ({"height": 160, "width": 161}, None),
        ([], None),
        ({}, None),
        ("2\x1b[31m", None),
        (True, None),
        ([[9]], None),
        (-224, None),
        (10**9, None),
    ],
    ids=repr,
)
def test_the_size_of_square_images_is_found(tmp_path, size, side):
    assert described(write(tmp_path, {"config": CLIP | {"size": size}}), STATISTICS).size == side


@pytest.mark.parametrize(
    ("page", "text"),
    [
        (CLIP, r"mean \[0.4815, .* No normalization= is theirs\."),
        ("{", r"config\.json is not JSON: .* Copy it again, or remove it"),
        ([1], r"config\.json: .*expected object"),
        ({"pretrained_cfg": 1}, r"config\.json: it is 1: expected object, got int"),
        ({"mean": "0.5", "std": [1]}, r"config\.json: .*expected"),
        ({"mean": [0.5], "std": ["1"]}, r"config\.json: .*expected"),
    ],
)
def test_an_unknown_normalization_and_damaged_descriptions_are_one_line(tmp_path, page, text):
    with pytest.raises(InfeedError, match=text) as caught:
        described(write(tmp_path, {"config": page}), STATISTICS).check("imagenet", 6)
    assert "\n" not in str(caught.value)


def begun(kind, weights, *options) -> Any:
    """The recipe and the options of a run that begins with these weights."""
    options = ["--tiny", "--workdir=nowhere", f"--init-from={weights}", *options]
    return as_trained(parsed(kind, options, "images")[0], "images", options)


def test_what_no_option_gives_is_as_the_weights_state_and_becomes_an_option_of_the_run(
    tmp_path, caplog
):
    caplog.set_level("INFO", "trainer")
    weights = write(tmp_path, {"config": TIMM})
    recipe, options = begun(images.Config, weights)
    assert (recipe.size, recipe.normalization) == (224, "inception")
    assert options[3:] == ["--size=224", "--normalization=inception"]
    assert caplog.messages == ["found with the weights: size 224, normalization inception"]
    assert parsed(images.Config, options, "images")[0] == recipe
    recipe, options = begun(images.Config, weights, "--size", "64", "--normalization=imagenet")
    assert (recipe.size, recipe.normalization, len(options)) == (64, "imagenet", 6)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(InfeedError, match="Set normalization=inception"):
        recipe.check()
    weights = write(tmp_path, {"config": TIMM["pretrained_cfg"] | {"input_size": 384}})
    chosen, _ = begun(imagenet_vit.Config, weights)
    assert (chosen.size, chosen.normalization) == (224, "inception")  # it sets its size


def test_a_run_that_resumes_keeps_them_and_records_them_again(
    tmp_path, dense_task, vector_input, config
):
    run = config()
    Trainer(dense_task, run).train(vector_input, steps=1)
    given = ["--tiny", f"--workdir={run.workdir}", f"--init-from={write(tmp_path, {})}"]
    trained = [*given, "--size=32", "--normalization=imagenet"]
    command = Invocation("images", trained, ".")
    append(run.workdir, Start(1, "2026-11-26T12:00:00+00:00", {}, None, {}, command, {}, "cpu"))
    write(tmp_path, {"config": TIMM})  # is not read
    recipe, options = as_trained(parsed(images.Config, given, "images")[0], "images", given)
    assert (recipe.size, recipe.normalization, options) == (32, "imagenet", trained)
    evaluated, _ = as_trained(replace(recipe, mode="evaluate", size=64), "images", given)
    assert (evaluated.size, evaluated.normalization) == (32, "imagenet")
    given.append("--size=64")
    other, options = as_trained(parsed(images.Config, given, "images")[0], "images", given)
    assert (other.size, options) == (64, [*given, "--normalization=imagenet"])


def test_a_damaged_description_is_an_error_of_the_check(tmp_path):
    recipe, options = begun(images.Config, write(tmp_path, {"config": "{"}), "--model=resnet18")
    assert (recipe.size, len(options)) == (64, 4)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(InfeedError, match=r"config\.json is not JSON"):
        recipe.check()
