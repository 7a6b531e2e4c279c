"""Schemas of ImageNet records: tensorflow/tpu's, optionally with boxes, and TFDS's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from converters.imagenet.boxes import BOX_FEATURES, box_features
from converters.images.image_records import IMAGE_FEATURES, image_features
from pipeline.raw.jpeg import Jpeg
from pipeline.shards.example import Value
from pipeline.shards.schema import Feature, Schema

FormName = Literal["tpu", "tpu+boxes", "tfds"]
_VERSION = "5.1.0"  # of TFDS's imagenet2012
TFDS_DIRECTORY = f"imagenet2012/{_VERSION}"
_TPU = {
    **IMAGE_FEATURES,
    "image/class/synset": Feature("bytes", content="text", doc="WordNet id of the class"),
    "image/class/text": Feature(
        "bytes", content="text", doc="words for the class, if the label file has them"
    ),
}
_TFDS = {
    "image": Feature("bytes", content="image", doc="the JPEG file"),
    "label": Feature("int64", doc="0..number of classes - 1"),
    "file_name": Feature("bytes", content="text", doc="base name in the raw data"),
}


@dataclass(frozen=True)
class Form:
    """A schema, and how to fill it."""

    schema: Schema
    label_key: str
    label_base: int
    has_boxes: bool = False

    def features(
        self, image: Jpeg, key: str, synset: bytes, label: int, words: str = "", boxes: str = ""
    ) -> tuple[Mapping[str, Value], tuple[str, ...]]:
        """A value for each feature, and fixups in addition to the image's own. label: from 1.
        boxes: text, see the top of `boxes`."""
        features = image_features(image, key)
        if self.schema.name == "tfds":
            return {
                "image": image.data,
                "label": label - 1,
                "file_name": features["image/filename"],
            }, ()
        features |= {
            "image/class/label": label,
            "image/class/synset": synset,
            "image/class/text": words.encode(),
        }
        if not self.has_boxes:
            return features, ()
        box_values, dropped = box_features(boxes, image.height, image.width, label)
        return {**features, **box_values}, ("box_outside_of_image",) * dropped


FORMS: Mapping[FormName, Form] = {
    "tpu": Form(Schema("tpu", _TPU), "image/class/label", 1),
    "tpu+boxes": Form(
        Schema("tpu", {**_TPU, **BOX_FEATURES}), "image/class/label", 1, has_boxes=True
    ),
    "tfds": Form(
        Schema("tfds", _TFDS, "imagenet2012-{SPLIT}.tfrecord-{SHARD_X_OF_Y}", _VERSION), "label", 0
    ),
}
