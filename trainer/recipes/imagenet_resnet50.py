"""ImageNet with ResNet-50 v1.5, in the settings of two published runs.

    infeed convert imagenet --raw-data-dir=ILSVRC2012 --output=shards/imagenet --full-set
    infeed train imagenet_resnet50 --data-dir shards/imagenet --workdir runs/imagenet

Data: ImageNet 2012, 1,281,167 images for training and 50,000 for validation.

| settings | hardware | batch, bn_span | steps | top-1 accuracy published by others |
| --- | --- | --- | --- | --- |
| flax | 32 TPU v3 cores, 2.1 h; v2, 2.5 h | 1024, 32 | 125,100 | 76.54 % (v3), 76.67 % (v2) [1] |
| tpu | 8 TPU v2 cores, 17 h | 1024, 128 | 112,590 | above 76 % [2] |

[1] https://github.com/google/flax/tree/main/examples/imagenet
[2] https://github.com/tensorflow/tpu/tree/master/models/official/resnet

The recipe has the settings of flax; trainer.recipes.imagenet_resnet50:TpuConfig in place of its
name has those of tpu.

Neither was reproduced here: there was no such hardware. These runs differ from the published ones
in details. Images are resized bilinearly, as in torchvision and big_vision (--resizing=bicubic:
OpenCV's, which is not TensorFlow's), and rounded to uint8. Convolutions are initialized by fan-out,
and strided ones are padded on both sides, as in torchvision. Where ten draws of a random crop fail,
the largest central window is taken.

bn_span is the published number of rows per core, so the statistics are theirs on any number of
devices."""

from dataclasses import dataclass
from typing import Any, Literal

from trainer.recipe import OptimizerConfig, TrainerConfig, settings
from trainer.recipes import images
from trainer.recipes.image_models import ModelName


@dataclass(frozen=True, kw_only=True)
class Config(images.Config):
    """Trains ResNet-50 v1.5 on ImageNet as published, then evaluates one exact epoch of the
    validation split.

    As flax's ImageNet example: 100 epochs with a cosine schedule. The learning rate follows
    --global-batch-size; give --max-epochs=100 with it, and --bn-span if it does not divide the
    batch."""

    model: ModelName = "resnet50"
    bn_span: int | None = 32
    resizing: Literal["bilinear", "bicubic"] = "bilinear"
    size: int = 224
    min_area: float = 0.08
    optimizer: OptimizerConfig = OptimizerConfig(
        optimizer="sgd", learning_rate=0.1, scaling="linear", warmup="5%", weight_decay=1e-4
    )
    trainer: TrainerConfig = settings(
        global_batch_size=1024, precision="bf16", max_steps=125_100, checkpoint_every_steps=2500
    )

    def central_crop(self) -> Any:
        """The op of evaluation: the central 7/8 of the shorter side, decoded and then resized, as
        both settings do."""
        from pipeline.ops import DecodeCentralCrop

        return DecodeCentralCrop(
            self.image_data.image, border=round(self.size / 7), **self.decoded()
        )


@dataclass(frozen=True, kw_only=True)
class TpuConfig(Config):
    """Trains ResNet-50 v1.5 on ImageNet as tensorflow/tpu does, then evaluates one exact epoch of
    the validation split.

    90 epochs; the learning rate rises for 5 and falls after 30, 60 and 80. See Config for the
    flags."""

    bn_span: int | None = 128
    # It decays all parameters but those of batch norms: the bias of the head, too.
    optimizer: OptimizerConfig = OptimizerConfig(
        optimizer="sgd",
        learning_rate=0.1,
        scaling="linear",
        schedule="step",
        warmup="5.5556%",
        decay_at=("33.3333%", "66.6667%", "88.8889%"),
        weight_decay=1e-4,
        decay_all=True,
        no_decay=("*/norm/*", "*/norms/*"),
    )
    trainer: TrainerConfig = settings(
        global_batch_size=1024, precision="bf16", max_steps=112_590, checkpoint_every_steps=2500
    )
