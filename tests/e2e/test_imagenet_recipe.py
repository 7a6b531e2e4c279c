"""imagenet_resnet50 on shards of the converter, and fine-tuning what it trained: a narrow network, tiny images."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from raw_data.imagenet import RawImagenet
from stages import without_beam

from pipeline.ops import DecodeCentralCrop
from trainer.commands.loading import parsed
from trainer.commands.running import run
from trainer.models.resnet import RESNETS
from trainer.recipes import imagenet_resnet50, images

pytestmark = pytest.mark.slow

SMALL = "--size 16 --global-batch-size 4 --eval-batch-size 4 --bn-span 2 --max-steps 2"


@pytest.fixture(scope="module", autouse=True)
def _narrow():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RESNETS, "resnet50", replace(RESNETS["resnet50"], depths=(1,), widths=(4,)))
        yield


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory):
    directory = tmp_path_factory.mktemp("imagenet")
    raw = RawImagenet(directory / "raw", train=(6, 5, 7), validation=5).write()
    with without_beam():
        raw.convert(directory / "shards")
    return directory / "shards"


@pytest.fixture(scope="module")
def trained(imagenet, tmp_path_factory):
    """The config of a training for two steps with the settings of tpu, which has been evaluated."""
    workdir = str(tmp_path_factory.mktemp("trained"))
    flags = f"--data-dir {imagenet} --workdir {workdir} {SMALL} --warmup 1 --decay-at 2"
    config: Any = parsed(imagenet_resnet50.TpuConfig, flags.split(), "train")[0]
    config.check()
    run(config)
    return config


def test_the_imagenet_recipe_trains_in_bfloat16_and_evaluates_exactly(trained):
    result = json.loads((Path(trained.trainer.workdir) / "eval_result.json").read_text())
    assert (result["records"], result["proven"], result["step"]) == (5, True, 2)


def test_evaluation_crops_the_central_seven_eighths_and_resizes(trained):
    options = {"into": "image", "size": (16, 16), "border": 2}
    assert trained.central_crop() == DecodeCentralCrop("image/encoded", **options)
    assert replace(trained, size=224).central_crop().border == 32


def test_the_images_recipe_fine_tunes_the_model_with_a_new_head(
    trained, imagenet, tmp_path, caplog
):
    flags = f"--data-dir {imagenet} --workdir {tmp_path} --num-classes 1200 {SMALL}"
    flags += f" --model resnet50 --init-from {trained.trainer.workdir} --init-exclude head/*"
    with caplog.at_level("INFO", "trainer"):
        run(parsed(images.Config, flags.split(), "train")[0])
    assert "head/kernel" in caplog.text
    result = json.loads((tmp_path / "eval_result.json").read_text())
    assert (result["records"], result["proven"]) == (5, True)
    assert "top5_accuracy" in result
