"""The features, classes and file names of a dataset of labelled images, found in its description, so that users need
not give them; and the classes of a training, in <workdir>/classes.json: other data may have others."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pipeline.errors import CheckpointError, OptionError, did_you_mean
from pipeline.logs import logger
from pipeline.shards.example_decoding import decode_features
from pipeline.shards.schema import Labels, Schema
from pipeline.shards.typed_json import Count, JsonFile
from pipeline.sources.indexed_records import FILE_NAME_KEYS
from pipeline.sources.records import Proven, Record, Records, fetch
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join
from trainer.workdir import CLASSES

log = logger("trainer")

BLOCK_BYTES = 16 << 20


@dataclass(frozen=True)
class TrainedClasses:
    """Labels base..base + num_classes - 1; names[i] is the name of label base + i, names is empty if they have none."""

    base: Count
    num_classes: Count
    names: tuple[str, ...]

    def to_json(self) -> bytes:
        """The content of the file."""
        return json.dumps(asdict(self), indent=1).encode() + b"\n"


@dataclass(frozen=True)
class ImageData:
    """The features to read. Labels are base..base + num_classes - 1; names[i] is the name of label base + i.

    file_name: the feature with the name of the image's file; None if there is none. classes: the model's, which may be
    others; those of the data if nothing else is known."""

    image: str
    channels: int
    label: str
    base: int
    num_classes: int
    names: tuple[str, ...]
    file_name: str | None
    classes: TrainedClasses

    def name(self, label: int) -> str | None:
        """The name of a label in the data; None if it has none."""
        return Labels(self.label, self.base, self.names).name_of(label)

    def class_name(self, number: int) -> str | None:
        """The name of a class that the model predicts; None if it has none."""
        return Labels("class", self.classes.base, self.classes.names).name_of(number)

    def check_labels(self, data_dir: str, workdir: str) -> None:
        """OptionError if a label of the data means another class to the model: an evaluation would be wrong."""
        for number, (name, trained) in enumerate(zip(self.names, self.classes.names, strict=False)):
            if name != trained:
                raise OptionError(
                    f"{data_dir}: class {self.base + number} is {name!r}, but the model in {workdir} was trained with "
                    f"{trained!r} in its place, so an evaluation would be wrong. Convert the data with the classes of "
                    "the training, or use --mode predict."
                )
        if len(self.names) > self.num_classes:
            raise OptionError(
                f"{data_dir} has {len(self.names)} classes, but the model in {workdir} was trained with "
                f"{self.num_classes}. Convert the data with the classes of the training, or use --mode predict."
            )


def image_data(config: Any, schema: object, labels: Labels | None, trained: TrainedClasses | None = None) -> ImageData:
    """From the flags, or else from the schema of the records and the class names stored with the data.

    config: the images recipe, which imports this module; image_key, label_key and num_classes are its flags. trained:
    the classes of the model, if it was trained already; they determine num_classes unless a flag does.
    Raises OptionError, which names the flag to give, if these are ambiguous."""
    if not isinstance(schema, Schema) or schema.opaque:
        raise OptionError(f"{config.data_name} has no schema of its records. Convert them: converters/SOURCES.md.")
    image = _image_key(config, schema)
    label = _label_key(config, schema, labels)
    if labels is None or labels.key != label:
        labels = Labels(label, 0, ())
    if config.num_classes and config.num_classes < len(labels.names):
        raise OptionError(
            f"--num-classes={config.num_classes}: {config.data_name} has {len(labels.names)} classes"
            f"{_some(labels.names)}. Leave it out."
        )
    num_classes = config.num_classes or (trained.num_classes if trained else len(labels.names))
    if num_classes < 2:
        there = f"only the class {labels.names[0]!r}" if labels.names else "no class names"
        raise OptionError(f"{config.data_name} has {there} for {label!r}. Give --num-classes.")
    channels = 1 if schema.features[image].channels == 1 else 3
    file_name = file_name_key(schema)
    classes = trained or TrainedClasses(labels.base, num_classes, labels.names)
    log.info("images: %r, labels: %r, %d classes%s", image, label, num_classes, _some(classes.names))
    return ImageData(image, channels, label, labels.base, num_classes, labels.names, file_name, classes)


def _image_key(config: Any, schema: Schema) -> str:
    bytes_features = {key: feature for key, feature in schema.features.items() if feature.dtype == "bytes"}
    if config.image_key is not None:
        return _known("--image-key", config.image_key, bytes_features, "a feature of bytes")
    if not bytes_features:
        raise OptionError(
            f"{config.data_name} has no image feature; it has {', '.join(sorted(schema.features))}. Rows of tokens are "
            "for the recipes byte_lm and char_lm; for other data write one of your own: trainer/RECIPES.md."
        )
    images = [key for key, feature in bytes_features.items() if feature.content == "image"]
    if not images and any(feature.content == "text" for feature in bytes_features.values()):
        raise OptionError(
            f"{config.data_name} has no image feature. Texts need a recipe of your own: trainer/RECIPES.md. If one of "
            f"these holds encoded images, give it as --image-key: {', '.join(sorted(bytes_features))}."
        )
    if len(images) != 1:
        found = ", ".join(map(repr, images)) or "none"
        raise OptionError(
            f"{config.data_name}: the image features are {found}; expected exactly one. Give --image-key, one of: "
            f"{', '.join(sorted(bytes_features))}."
        )
    return images[0]


def _label_key(config: Any, schema: Schema, labels: Labels | None) -> str:
    integers = {
        key: feature for key, feature in schema.features.items() if (feature.dtype, feature.shape) == ("int64", ())
    }
    if config.label_key is not None:
        return _known("--label-key", config.label_key, integers, "one integer per record")
    if labels is not None and labels.key in integers:
        return labels.key
    if len(integers) != 1:
        raise OptionError(
            f"{config.data_name}: the features with one integer are {', '.join(sorted(integers)) or 'none'}; expected "
            "exactly one as the label. Give --label-key."
        )
    return next(iter(integers))


def _known(flag: str, key: str, allowed: Iterable[str], kind: str) -> str:
    if key not in allowed:
        raise OptionError(f"{flag}={key} is not {kind}.{did_you_mean(key, allowed)}")
    return key


def _some(names: tuple[str, ...]) -> str:
    return f" ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})" if names else ""


def file_name_key(schema: Schema) -> str | None:
    """The feature that holds the name of an image's file; None if there is none."""
    features = schema.features
    return next((key for key in FILE_NAME_KEYS if key in features and features[key].dtype == "bytes"), None)


class FileNames:
    """The file names of these records, for numbers that ascend: reads the records once more, in large blocks."""

    def __init__(self, records: Records, key: str) -> None:
        self._records, self._key = records, key.encode()
        mean = records.info.num_bytes // records.info.num_records + 1
        self._block_records = max(1, min(BLOCK_BYTES // mean, 1024))
        self._start, self._block = 0, list[Record]()

    def __getitem__(self, number: int) -> str | None:
        """The file name of a record; None if the record has none or is damaged."""
        if not 0 <= number - self._start < len(self._block):
            end = min(number + self._block_records, self._records.info.num_records)
            self._start, self._block = number, fetch(self._records, np.arange(number, end))
        record = self._block[number - self._start]
        if not isinstance(record, Proven):
            return None
        names = decode_features(record.payload, [self._key]).get(self._key.decode(), ())
        return names[0].decode(errors="surrogateescape") if len(names) == 1 else None


def trained_classes(workdir: str) -> TrainedClasses | None:
    """The classes of the training in this work directory; None if not known. CheckpointError for a damaged file."""
    storage, path = open_storage(workdir), join(workdir, CLASSES)
    if not storage.exists(path):
        return None
    file = JsonFile(path, CheckpointError, "Remove it: then the classes of the data count.")
    return file.read(storage.read(path), TrainedClasses)
