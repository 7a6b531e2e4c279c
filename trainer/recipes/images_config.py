"""The flags of the images recipe."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import tyro

from pipeline.errors import OptionError
from trainer.config import TrainerConfig
from trainer.recipes.config import SMALL_BATCHES, RecipeConfig

if TYPE_CHECKING:
    from trainer.recipes.image_data import ImageData

__all__ = ["Config"]

DEFAULTS = replace(SMALL_BATCHES, max_steps=2000, checkpoint_every_steps=500)


@dataclass(frozen=True, kw_only=True)
class Config(RecipeConfig):
    """Trains a small CNN on images with one label each, then evaluates one exact epoch of the validation split.

    By default, the dataset determines the features of image and label, and the names of the classes."""

    image_key: str | None = None
    """The feature with the encoded image. Default: the only image feature."""
    label_key: str | None = None
    """The feature with the integer label. Default: that of the class names, or the only integer."""
    num_classes: int | None = None
    """Number of classes. Default: the number of class names."""
    size: int = 64
    """Width and height of the images, in pixels."""
    augmentation: Literal["none", "crop", "trivial"] = "crop"
    """On the host, in training only. none: the central crop, as in evaluation. crop: a random resized crop, mirrored
    half of the time. trivial: the same, then TrivialAugmentWide."""
    min_area: float = 0.25
    """Minimum share of the image's area in a random crop; 0.08 is usual for long training runs on ImageNet."""
    mirror: bool = True
    """Mirror half of the random crops; turn it off for text and other images where left and right matter."""
    color_jitter: float = 0.0
    """Change brightness, contrast and saturation by factors in 1 - x..1 + x. This and the following augmentations run
    on the device, in training only."""
    random_erasing: float = 0.0
    """Share of images in which a rectangle is blackened."""
    mixup: float = 0.0
    """Mix images and labels with weights from Beta(x, x); 0.2 is usual."""
    cutmix: float = 0.0
    """Paste rectangles of other images, with areas from Beta(x, x); 1.0 is usual."""
    label_smoothing: float = 0.0
    """Share of each label that is spread over all classes."""
    widths: tuple[int, ...] = (32, 64, 128, 256)
    """Channels of the CNN's convolutions; each one halves the image."""
    learning_rate: float = 2e-3
    """Peak of a cosine schedule with a short warm-up."""
    weight_decay: float = 0.05
    """Weight decay of AdamW."""
    trainer: tyro.conf.OmitArgPrefixes[TrainerConfig] = DEFAULTS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 8 or self.size >> len(self.widths) < 1:
            raise OptionError(
                f"size={self.size} with {len(self.widths)} widths: each width halves the image, which needs at least "
                f"8 pixels. Give a larger size or fewer widths."
            )
        if not self.widths or min(self.widths) < 1:
            raise OptionError(f"widths={self.widths} must be one or more numbers above 0.")
        if self.num_classes is not None and self.num_classes < 2:
            raise OptionError(f"num_classes={self.num_classes} must be at least 2.")
        for name in ("min_area", "color_jitter", "random_erasing", "label_smoothing"):
            if not 0 <= getattr(self, name) <= 1:
                raise OptionError(f"{name}={getattr(self, name)} must be in 0..1.")
        for name in ("mixup", "cutmix", "weight_decay", "learning_rate"):
            if not 0 <= getattr(self, name) < math.inf:
                raise OptionError(f"{name}={getattr(self, name)} must be at least 0.")

    def check_features(self) -> None:
        _ = self.image_data

    @cached_property
    def image_data(self) -> "ImageData":
        """See find_image_data."""
        from trainer.recipes.image_data import Choices, find_image_data

        choices = Choices(self.data_dir, self.image_key, self.label_key, self.num_classes)
        return find_image_data(choices, self.eval_records.layout)
