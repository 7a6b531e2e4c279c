"""The features of labelled images, their classes and file names, found in the description of a
dataset, so that users need not give them."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.checks import did_you_mean
from pipeline.description import Description
from pipeline.errors import OptionError
from pipeline.logs import logger
from pipeline.shards.example_decoding import decode_features
from pipeline.shards.schema import Labels, Schema
from pipeline.sources.dataset import Dataset
from pipeline.sources.indexed_records import FILE_NAME_KEYS
from pipeline.sources.records import Record, Records, fetch

log = logger("trainer")
IMAGE = "image"  # the key of a decoded image
BLOCK_BYTES = 16 << 20


@dataclass(frozen=True)
class ImageData:
    """The features that a model reads. Labels are base..base + num_classes - 1; names[i] is the
    name of base + i."""

    image: str
    channels: int
    label: str
    base: int
    num_classes: int
    names: tuple[str, ...]

    @property
    def labels(self) -> Labels:
        """The names of the classes, of which there may be none."""
        return Labels(self.label, self.base, self.names)


def image_data(config: Any, description: Description | None) -> ImageData:
    """The data by the flags, or else by the features and class names that describe the model's
    data.

    config: the images recipe, which imports this module; image_key, label_key and num_classes are
    its flags. Raises OptionError, which names the flag to give, if these are ambiguous."""
    if description is None:
        raise OptionError(
            f"{config.data_name} has no schema of its records. Convert them: docs/sources.md."
        )
    schema = description.schema
    image = _image_key(config, schema)
    label = _label_key(config, schema, description.labels)
    labels = description.names(label) or Labels(label, 0, ())
    if config.num_classes and config.num_classes < labels.count:
        raise OptionError(
            f"--num-classes={config.num_classes}: {config.data_name} has {labels.count} "
            f"classes{_some(labels.names)}. Leave it out."
        )
    num_classes = config.num_classes or labels.count
    if num_classes < 2:
        names = f"only the class {labels.names[0]!r}" if labels.names else "no class names"
        raise OptionError(f"{config.data_name} has {names} for {label!r}. Give --num-classes.")
    channels = 1 if schema.features[image].channels == 1 else 3
    log.info("images: %r, labels: %r, %d classes%s", image, label, num_classes, _some(labels.names))
    return ImageData(image, channels, label, labels.base, num_classes, labels.names)


def _image_key(config: Any, schema: Schema) -> str:
    keys = [key for key, feature in schema.features.items() if feature.dtype == "bytes"]
    if config.image_key is not None:
        return _known("--image-key", config.image_key, keys, "a feature of bytes")
    images = [key for key in keys if schema.features[key].content == "image"]
    if len(images) != 1:
        listed = ", ".join(map(repr, images)) or "none"
        hint = "Rows of tokens are for the recipes byte_lm and char_lm."
        if keys:
            hint = f"Give --image-key, one of: {', '.join(sorted(keys))}."
        raise OptionError(
            f"{config.data_name}: the image features are {listed}; expected exactly one. {hint} "
            "Other data need a recipe of your own: docs/recipes.md."
        )
    return images[0]


def _label_key(config: Any, schema: Schema, labels: Labels | None) -> str:
    integers = [
        key
        for key, feature in schema.features.items()
        if (feature.dtype, feature.shape) == ("int64", ())
    ]
    if config.label_key is not None:
        return _known("--label-key", config.label_key, integers, "one integer per record")
    if labels is not None and labels.key in integers:
        return labels.key
    if len(integers) != 1:
        raise OptionError(
            f"{config.data_name}: the features with one integer are "
            f"{', '.join(sorted(integers)) or 'none'}; expected exactly one as the label. Give "
            "--label-key."
        )
    return integers[0]


def _known(flag: str, key: str, allowed: Iterable[str], kind: str) -> str:
    if key not in allowed:
        raise OptionError(f"{flag}={key} is not {kind}.{did_you_mean(key, allowed)}")
    return key


def _some(names: tuple[str, ...]) -> str:
    return f" ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})" if names else ""


def file_name_key(schema: Schema) -> str | None:
    """The feature that holds the name of an image's file; None if there is none."""
    for key in FILE_NAME_KEYS:
        if key in schema.features and schema.features[key].dtype == "bytes":
            return key
    return None


def class_counts(records: Dataset, data: ImageData) -> list[int]:
    """How many of the records have each class. Reads all of them, and logs how long that took."""
    began = time.monotonic()
    counts = Counter(int(example[data.label]) for example in records.examples([data.label]))
    log.info("counted the classes of %d records in %.1f s", len(records), time.monotonic() - began)
    return [counts[data.base + number] for number in range(data.num_classes)]


class FileNames:
    """The file names of these records, for numbers that ascend: reads the records once more, in
    large blocks."""

    def __init__(self, records: Records, key: str) -> None:
        self._records = records
        self._key = key.encode()
        mean = records.info.num_bytes // records.info.num_records + 1
        self._block_records = max(1, min(BLOCK_BYTES // mean, 1024))
        self._start = 0
        self._block = list[Record]()

    def __getitem__(self, number: int) -> str | None:
        """The file name of a record; None if the record has none or is damaged."""
        if not 0 <= number - self._start < len(self._block):
            end = min(number + self._block_records, self._records.info.num_records)
            self._start = number
            self._block = fetch(self._records, np.arange(number, end))
        record = self._block[number - self._start]
        if not isinstance(record, tuple):
            return None
        names = decode_features(record[0], [self._key]).get(self._key.decode(), ())
        return names[0].decode(errors="surrogateescape") if len(names) == 1 else None
