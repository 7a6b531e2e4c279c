"""The base of recipes for small images of one size with one label each: checks, inputs, cross
entropy, accuracy.

JAX is imported where it is used, so that --help and the checks do not need it."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.checks import check_positive_int
from pipeline.errors import OptionError
from trainer.config import TrainerConfig
from trainer.recipe import DataRecipe, OptimizerConfig
from trainer.recipes.image_data import IMAGE
from trainer.recipes.tiny import ENCODED, LABEL, Encoding, tiny_images

if TYPE_CHECKING:
    from pipeline.decoding.op import Op
    from pipeline.shards.example import Value
    from pipeline.shards.schema import Labels
    from pipeline.sources.records import Records
    from trainer.task import Task

# names of schemas
OF_IMAGENET = ("tpu", "tpu+boxes", "tfds")
OF_PHOTOGRAPHS = ("image_folder", "image_table")
OTHER_IMAGES = "For other labelled images, use the images recipe: python -m trainer images."


@dataclass(frozen=True, kw_only=True)
class LabelledImages(DataRecipe):
    """A classifier of images that all have one size. A subclass states what the data are, and makes
    the model.

    image_shape: height, width and channels. encoding: of the images in the shards. Labels are
    label_base..label_base + num_classes - 1."""

    image_shape: ClassVar[tuple[int, int, int]]
    encoding: ClassVar[Encoding] = "png"
    num_classes: ClassVar[int] = 10
    label_base: ClassVar[int] = 0

    optimizer: OptimizerConfig = OptimizerConfig()

    @abstractmethod
    def model(self, rngs: Any) -> Any:
        """An nnx.Module: images uint8 [b, *image_shape], mask [b] -> logits float32 [b,
        num_classes].

        mask: 0.0 in rows that must not affect others, such as padding."""

    def augmentation(self) -> "Sequence[Op]":
        """Ops on the decoded training images, feature "image". Default: none."""
        return ()

    def check(self) -> None:
        """Checks like DataRecipe.check. Raises OptionError if the records lack the features that
        this recipe reads, or have other classes."""
        super().check()
        features = getattr(self.eval_records.info.layout, "features", {})
        for key in (ENCODED, LABEL):
            if key not in features:
                raise OptionError(
                    f"{self.data_name} has no feature {key!r}, which this recipe reads. Its "
                    f"features are: {', '.join(sorted(features)) or 'unknown'}. {OTHER_IMAGES}"
                )
        labels = self._labels
        if labels and (labels.base, labels.count) != (self.label_base, self.num_classes):
            own = self.eval_records.info.description == self.description
            raise OptionError(
                f"{self.data_name if own else self.trained_in} has {labels.count} classes, "
                f"numbered from {labels.base}; this recipe is for {self.num_classes} classes, "
                f"numbered from {self.label_base}. {OTHER_IMAGES}"
            )

    def class_names(self) -> "Mapping[str, Labels]":
        """The names of the predicted class, if they are stored with the data."""
        return {"class": self._labels} if self._labels else {}

    @property
    def _labels(self) -> "Labels | None":
        return self.description and self.description.names(LABEL)

    def file_record(self, data: bytes, *, upright: bool = False) -> "Mapping[str, Value]":
        """See raw_image."""
        return raw_image(self.eval_records.info.layout, ENCODED, data, upright=upright)

    def tiny_records(self, split: str) -> "Records":
        """See tiny_images."""
        return tiny_images(
            split,
            self.image_shape,
            self.num_classes,
            label_base=self.label_base,
            encoding=self.encoding,
        )

    def train_input(self) -> Any:
        """Augmented images: image uint8 [b, *image_shape], and the label int32 [b]."""
        from pipeline.datasets import train_dataset

        ops = [self._decoding(), *self.augmentation()]
        return train_dataset(self.train_records, ops=ops, keys=(IMAGE, LABEL))

    def eval_input(self) -> Any:
        """Like train_input, in order and not augmented."""
        from pipeline.datasets import eval_dataset

        return eval_dataset(self.eval_records, ops=[self._decoding()], keys=(IMAGE, LABEL))

    def _decoding(self) -> "Op":
        from pipeline.ops import DecodeJpeg, DecodePng

        decode = DecodeJpeg if self.encoding == "jpeg" else DecodePng
        return decode(ENCODED, into=IMAGE, shape=self.image_shape)

    def task(self) -> "Task":
        """Cross entropy and accuracy of the model.

        Predicts class and label, both as the data number them, and the probability of the class."""
        from trainer.recipes.tasks import classifier_task
        from trainer.task import Target

        return classifier_task(self, self.model, Target(LABEL, self.num_classes, self.label_base))


def raw_image(layout: Any, key: str, data: bytes, *, upright: bool) -> "Mapping[str, Value]":
    """The feature `key` as the conversion that wrote records of this layout makes it from an image
    file.

    Converters of photographs write JPEGs; all others keep the pixels of lossless images. upright:
    turn it according to EXIF. Raises Reject, and InfeedError for HEIC without pillow-heif."""
    from pipeline.raw.image_files import ToJpeg
    from pipeline.raw.jpeg import PNG_MAGIC, to_rgb_jpeg

    known = data.startswith((b"\xff\xd8", PNG_MAGIC))  # to the conversion of ImageNet
    if layout.name in OF_IMAGENET and known and not upright:
        return {key: to_rgb_jpeg(data, "decode").data}
    to_jpeg = ToJpeg("decode", apply_orientation=upright)
    is_photograph = layout.name in (*OF_PHOTOGRAPHS, *OF_IMAGENET)
    return {key: to_jpeg(data).data if is_photograph else to_jpeg.stored(data)[0]}


def fitting_span(bn_span: int, trainer: TrainerConfig, tiny: bool) -> int:
    """The rows over which batch norms take their statistics: bn_span; with --tiny, whose batches
    are small, what divides them. OptionError unless it divides a batch."""
    check_positive_int("bn_span", bn_span)
    rows = trainer.global_batch_size // trainer.accumulate
    divisor = math.gcd(rows, bn_span)
    if divisor != bn_span and not tiny:
        raise OptionError(
            f"bn_span={bn_span} does not divide the {rows} rows of a batch (global_batch_size / "
            f"accumulate). Give --bn-span a divisor, such as {divisor}."
        )
    return divisor
