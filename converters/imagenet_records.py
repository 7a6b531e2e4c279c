"""What an ImageNet record looks like: tensorflow/tpu's schema, with boxes where they are given, or TFDS's own.

Pure: an image and what is known of it in, features out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from converters.boxes import BOX_FEATURES, box_features
from converters.image_records import IMAGE_FEATURES, image_features
from converters.jpeg import Jpeg
from pipeline.shards.example import Value
from pipeline.shards.schema import Feature, Labels, Schema

__all__ = ["FORMS", "TFDS_DIRECTORY", "Form", "FormName", "Labelled"]

FormName = Literal["tpu", "tpu+boxes", "tfds"]

_VERSION = "5.1.0"  # of TFDS's imagenet2012
TFDS_DIRECTORY = f"imagenet2012/{_VERSION}"

_TPU = {
    **IMAGE_FEATURES,
    "image/class/synset": Feature("bytes", content="text", doc="WordNet id of the class"),
    "image/class/text": Feature("bytes", content="text", doc="words for the class, if the label file has them"),
}
_TFDS = {
    "image": Feature("bytes", content="image", doc="the JPEG file"),
    "label": Feature("int64", doc="0..number of classes - 1"),
    "file_name": Feature("bytes", content="text", doc="base name in the raw data"),
}


@dataclass(frozen=True)
class Labelled:
    """An image and what is known of it. label: from 1. boxes: text, see boxes."""

    image: Jpeg
    key: str
    synset: bytes
    label: int
    words: str
    boxes: str = ""


@dataclass(frozen=True)
class Form:
    """One of the schemas."""

    schema: Schema
    label_key: str
    label_base: int

    def labels(self, synsets: tuple[str, ...]) -> Labels:
        """The label feature, and the synset of each number."""
        return Labels(self.label_key, self.label_base, synsets)

    def features(self, record: Labelled) -> tuple[Mapping[str, Value], tuple[str, ...]]:
        """A value for each feature, and what was done to get there beside the image's own repairs."""
        image = image_features(record.image, record.key, record.label)
        if self.schema.name == "tfds":
            name = image["image/filename"]
            return {"image": record.image.data, "label": record.label - 1, "file_name": name}, ()
        features = {**image, "image/class/synset": record.synset, "image/class/text": record.words.encode()}
        if not self.has_boxes:
            return features, ()
        boxes, dropped = box_features(record.boxes, record.image.height, record.image.width, record.label)
        return {**features, **boxes}, ("box_outside_of_image",) * dropped

    @property
    def has_boxes(self) -> bool:
        """Whether records hold bounding boxes."""
        return self.schema.features.keys() >= BOX_FEATURES.keys()


FORMS: Mapping[FormName, Form] = {
    "tpu": Form(Schema("tpu", _TPU), "image/class/label", 1),
    "tpu+boxes": Form(Schema("tpu", {**_TPU, **BOX_FEATURES}), "image/class/label", 1),
    "tfds": Form(Schema("tfds", _TFDS, "imagenet2012-{SPLIT}.tfrecord-{SHARD_X_OF_Y}", _VERSION), "label", 0),
}
