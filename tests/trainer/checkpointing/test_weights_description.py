"""What timm's and transformers' files beside weights say of images, compared with those of a model."""

import json
import logging
import re

import pytest

from pipeline.errors import InfeedError
from trainer.checkpointing.weights_description import check_images
from trainer.models.pixels import STATISTICS

IMAGENET, INCEPTION = STATISTICS["imagenet"], STATISTICS["inception"]
TIMM = {"pretrained_cfg": {"input_size": [3, 224, 224], "mean": [0.5] * 3, "std": [0.5] * 3}}
TRANSFORMERS = {
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "size": {"height": 224, "width": 224},
}
CLIP = {"mean": [0.4815, 0.4578, 0.4082], "std": [0.2686, 0.2613, 0.2758]}


def check(directory, name, page, used):
    text = page if isinstance(page, str) else json.dumps(page)
    (directory / name).write_text(text)
    check_images(str(directory / "model.safetensors"), used, STATISTICS)


@pytest.mark.parametrize(
    ("name", "page"), [("config.json", TIMM), ("preprocessor_config.json", TRANSFORMERS)]
)
def test_images_of_the_weights_are_logged_and_those_of_another_normalization_refused(
    tmp_path, name, page, caplog
):
    caplog.set_level(logging.INFO)
    check(tmp_path, name, page, INCEPTION)
    assert re.search(rf"{name} describes images of size .*224.*, mean \[0.5, 0.5,", caplog.text)
    check_images(str(tmp_path), INCEPTION, STATISTICS)  # the directory
    with pytest.raises(InfeedError, match=r"mean \[0.5, .*Set normalization=inception\."):
        check(tmp_path, name, page, IMAGENET)


def test_weights_without_a_description_are_taken_as_they_are(tmp_path):
    check_images(str(tmp_path / "model.safetensors"), IMAGENET, STATISTICS)
    check(tmp_path, "config.json", {"hidden_size": 24}, IMAGENET)


@pytest.mark.parametrize(
    ("page", "text"),
    [
        (CLIP, r"No normalization= is theirs\."),
        (CLIP | {"size": "2\x1b[31m\n" * 99}, r"of size '2\\x1b\[31m\\n.{,60}, mean"),
        ("{", r"config\.json is not JSON: .* Copy it again, or remove it"),
        ([1], r"config\.json: .*expected object"),
        ({"pretrained_cfg": 1}, r"config\.json: it is 1: expected object, got int"),
        ({"mean": "0.5", "std": [1]}, r"config\.json: .*expected"),
        ({"mean": [0.5], "std": ["1"]}, r"config\.json: .*expected"),
    ],
)
def test_another_normalization_and_damaged_descriptions_are_one_line(tmp_path, page, text):
    with pytest.raises(InfeedError, match=text) as caught:
        check(tmp_path, "config.json", page, IMAGENET)
    assert "\n" not in str(caught.value)
