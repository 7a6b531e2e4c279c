"""Images with one label each: a CNN, a ResNet or a Vision Transformer on any such dataset.

    infeed convert images --raw-data-dir=photos --validation-fraction=0.2 --output=shards/photos
    infeed train images --data-dir shards/photos --workdir runs/photos

Data and results are yours. With the small CNN, two CPU cores and 600 steps, tiles of 24 photographs
are told apart with 75 % accuracy or more (tests/e2e/photograph_classes.py).

JAX is imported where it is used, so that --help and the checks do not need it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from pipeline.checks import check_number
from pipeline.shards.schema import Labels, Schema
from trainer.recipe import TrainerConfig, settings
from trainer.recipes.image_data import IMAGE, FileNames, class_counts, file_name_key
from trainer.recipes.image_models import ImageModel
from trainer.recipes.labelled_images import raw_image
from trainer.recipes.tiny import tiny_images

MIXING = (
    "--mixup and --cutmix mix the labels of two records, so each must have one. Leave both out, or "
    "train on records with a label only."
)

if TYPE_CHECKING:
    from pipeline.shards.example import Value
    from pipeline.sources.records import Records
    from trainer.task import Augment, Batch, Task


@dataclass(frozen=True, kw_only=True)
class Config(ImageModel):
    """Trains a CNN, a ResNet or a Vision Transformer on images with one label each, then evaluates
    one exact epoch of the validation split.

    By default, the dataset determines the features of image and label, and the names of the
    classes."""

    common_fields = (
        "size",
        "model",
        "vit",
        "normalization",
        "bn_span",
        "augmentation",
        "mirror",
        "num_classes",
    )

    resizing: Literal["bilinear", "bicubic"] = "bilinear"
    """How images are resized."""
    augmentation: Literal["none", "crop", "trivial"] = "crop"
    """On the host, in training only. none: the central crop, as in evaluation. crop: a random
    resized crop, mirrored half of the time. trivial: the same, then TrivialAugmentWide."""
    min_area: float = 0.25
    """Minimum share of the image's area in a random crop; 0.08 is usual for long training runs on
    ImageNet."""
    mirror: bool = True
    """Mirror half of the random crops; turn it off for text and other images where left and right
    matter."""
    color_jitter: float = 0.0
    """Change brightness, contrast and saturation by factors in 1 - x..1 + x. This and the following
    augmentations run on the device, in training only."""
    random_erasing: float = 0.0
    """Share of images in which a rectangle is blackened."""
    mixup: float = 0.0
    """Mix images and labels with weights from Beta(x, x); 0.2 is usual."""
    cutmix: float = 0.0
    """Paste rectangles of other images, with areas from Beta(x, x); 1.0 is usual."""
    label_smoothing: float = 0.0
    """Share of each label that is spread over all classes."""
    class_weights: Literal["equal", "balanced"] = "equal"
    """What the records of a class weigh in the loss of the training; metrics weigh all alike.
    balanced: all classes the same in sum. Each host first reads all training records, at every
    start, to count them."""
    trainer: TrainerConfig = settings(
        eval_batch_size=128, iterations_per_loop=20, max_steps=2000, checkpoint_every_steps=500
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("min_area", "color_jitter", "random_erasing", "label_smoothing"):
            check_number(name, getattr(self, name), at_least=0, at_most=1)
        for name in ("mixup", "cutmix"):
            check_number(name, getattr(self, name), at_least=0, below=math.inf)

    def tiny_records(self, split: str) -> "Records":
        """Color images of 80x96 pixels in ten classes, or num_classes. See tiny_images."""
        return tiny_images(split, (80, 96, 3), self.num_classes or 10, encoding="jpeg")

    def task(self) -> "Task":
        """See classifier_task."""
        from trainer.recipes.tasks import balanced_weights, classifier_task
        from trainer.task import Target

        data = self.image_data
        target = Target(data.label, data.num_classes, data.base)
        weights = None
        if self.class_weights == "balanced" and self.mode == "train":
            weights = balanced_weights(class_counts(self.train_records, data))
        return classifier_task(
            self,
            self.network,
            target,
            top5=data.num_classes > 5,
            augment=self._on_device(),
            class_weights=weights,
        )

    def _on_device(self) -> "Augment | None":
        from trainer.augment import color_jitter, cutmix, mixup, one_hot, random_erasing
        from trainer.recipes.tasks import SOFT_LABELS

        data = self.image_data
        mixes = self.mixup or self.cutmix or self.label_smoothing

        def augment(batch: "Batch") -> "Batch":
            if x := self.color_jitter:
                saturation = x if data.channels == 3 else 0.0
                batch = color_jitter(batch, IMAGE, brightness=x, contrast=x, saturation=saturation)
            if self.random_erasing:
                batch = random_erasing(batch, IMAGE, probability=self.random_erasing)
            if mixes:
                batch = one_hot(
                    batch,
                    data.label,
                    data.num_classes,
                    base=data.base,
                    smoothing=self.label_smoothing,
                    into=SOFT_LABELS,
                )
            if self.mixup:
                batch = mixup(batch, IMAGE, SOFT_LABELS, alpha=self.mixup)
            if self.cutmix:
                batch = cutmix(batch, IMAGE, SOFT_LABELS, alpha=self.cutmix)
            return batch

        return augment if self.color_jitter or self.random_erasing or mixes else None

    def train_input(self) -> Any:
        """Augmented images: image uint8 [b, size, size, channels], and the label int32 [b]."""
        from pipeline.datasets import train_dataset
        from pipeline.ops import DecodeRandomResizedCrop, RequireLabel, TrivialAugmentWide

        crop = DecodeRandomResizedCrop(
            self.image_data.image, area=(self.min_area, 1.0), flip=self.mirror, **self.decoded()
        )
        ops = {
            "none": [self.central_crop()],
            "crop": [crop],
            "trivial": [crop, TrivialAugmentWide(IMAGE)],
        }
        mixes = [RequireLabel(self.image_data.label, MIXING)] if self.mixup or self.cutmix else []
        return train_dataset(
            self.train_records,
            ops=[*mixes, *ops[self.augmentation]],
            keys=(IMAGE, self.image_data.label),
            epochs="span",
        )

    def eval_input(self) -> Any:
        """Like train_input, in order and cropped at the center."""
        from pipeline.datasets import eval_dataset

        keys = (IMAGE, self.image_data.label)
        return eval_dataset(self.eval_records, ops=[self.central_crop()], keys=keys)

    def file_record(self, data: bytes, *, upright: bool = False) -> "Mapping[str, Value]":
        """See raw_image."""
        return raw_image(
            self.eval_records.info.layout, self.image_data.image, data, upright=upright
        )

    def class_names(self) -> "Mapping[str, Labels]":
        """The names of the predicted class."""
        return {"class": self.image_data.labels}

    def prediction(self, values: dict[str, Any]) -> Mapping[str, Any]:
        """Adds the names of classes, and of the image's file, where there are names."""
        labels = self.image_data.labels
        index = values.get("index")
        names = {
            f"{key}_name": labels.name_of(values[key])
            for key in ("class", "label")
            if key in values
        }
        if self._file_names and index is not None:
            names["file"] = self._file_names[index]
        return values | {key: name for key, name in names.items() if name is not None}

    @cached_property
    def _file_names(self) -> FileNames | None:
        info = self.eval_records.info
        key = file_name_key(info.layout) if isinstance(info.layout, Schema) else None
        return FileNames(self.eval_records, key) if key and info.whole_files is None else None

    def central_crop(self) -> Any:
        """The op of evaluation: 7/8 of the shorter side, such as 224 of 256 pixels."""
        from pipeline.ops import DecodeCentralCrop

        return DecodeCentralCrop(
            self.image_data.image, resize_short=round(self.size * 8 / 7), **self.decoded()
        )

    def decoded(self) -> dict[str, Any]:
        """The options that all decoding ops of the recipe have in common."""
        return {
            "into": IMAGE,
            "size": (self.size, self.size),
            "channels": self.image_data.channels,
            "method": self.resizing,
            "upright": self.schema.upright,
        }
