"""Finds the features of images and labels in the description of a dataset, so that users need not give them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.errors import OptionError, did_you_mean
from pipeline.logs import logger
from pipeline.shards.schema import Labels, Schema
from pipeline.sources.records import Records
from trainer.recipes.file_names import file_name_key
from trainer.recipes.trained_classes import TrainedClasses

__all__ = ["Choices", "ImageData", "find_image_data", "image_data"]

log = logger("trainer")


@dataclass(frozen=True)
class ImageData:
    """The features to read. Labels are base..base + num_classes - 1; names[i] is the name of label base + i.

    file_name: the feature with the name of the image's file; None if there is none. trained: the model's classes, if
    they are known; the data may have others."""

    image: str
    channels: int
    label: str
    base: int
    num_classes: int
    names: tuple[str, ...]
    file_name: str | None = None
    trained: TrainedClasses | None = None

    @property
    def classes(self) -> TrainedClasses:
        """The model's classes; those of the data if nothing else is known."""
        return self.trained or TrainedClasses(self.base, self.num_classes, self.names)

    def name(self, label: int) -> str | None:
        """The name of a label in the data; None if it has none."""
        return _at(self.names, label - self.base)

    def class_name(self, number: int) -> str | None:
        """The name of a class that the model predicts; None if it has none."""
        return _at(self.classes.names, number - self.classes.base)

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


class Choices(NamedTuple):
    """The flags with these names. None: found in the dataset."""

    data_dir: str
    image_key: str | None = None
    label_key: str | None = None
    num_classes: int | None = None


def find_image_data(choices: Choices, records: Records, trained: TrainedClasses | None = None) -> ImageData:
    """From the flags, or else from the records' schema and the class names stored with the data.

    trained: the classes of the model, if it was trained already; they determine num_classes unless a flag does.

    Raises OptionError, which names the flag to give, if these are ambiguous."""
    schema = records.info.layout
    if not isinstance(schema, Schema) or schema.opaque:
        raise OptionError(f"{choices.data_dir} has no schema of its records. Convert them: converters/SOURCES.md.")
    found = image_data(choices, schema, records.info.labels, trained)
    what = (found.image, found.label, found.num_classes, _some(found.classes.names))
    log.info("images: %r, labels: %r, %d classes%s", *what)
    return found


def image_data(
    choices: Choices, schema: Schema, labels: Labels | None, trained: TrainedClasses | None = None
) -> ImageData:
    """As find_image_data, from the schema and the class names."""
    image = _image_key(choices, schema)
    label = _label_key(choices, schema, labels)
    if labels is None or labels.key != label:
        labels = Labels(label, 0, ())
    num_classes = choices.num_classes or (trained.num_classes if trained else len(labels.names))
    if num_classes < 2:
        there = f"only the class {labels.names[0]!r}" if labels.names else "no class names"
        raise OptionError(f"{choices.data_dir} has {there} for {label!r}. Give --num-classes.")
    channels = 1 if schema.features[image].channels == 1 else 3
    names, file_name = labels.names, file_name_key(schema)
    return ImageData(image, channels, label, labels.base, num_classes, names, file_name, trained)


def _image_key(choices: Choices, schema: Schema) -> str:
    bytes_features = {key: feature for key, feature in schema.features.items() if feature.dtype == "bytes"}
    if choices.image_key is not None:
        return _known("--image-key", choices.image_key, bytes_features, "a feature of bytes")
    if not bytes_features:
        raise OptionError(
            f"{choices.data_dir} has no image feature; it has {', '.join(sorted(schema.features))}. Rows of tokens are "
            "for the recipes byte_lm and char_lm; for other data write one of your own: trainer/RECIPES.md."
        )
    images = [key for key, feature in bytes_features.items() if feature.content == "image"]
    if not images and any(feature.content == "text" for feature in bytes_features.values()):
        raise OptionError(
            f"{choices.data_dir} has no image feature. Texts need a recipe of your own: trainer/RECIPES.md. If one of "
            f"these holds encoded images, give it as --image-key: {', '.join(sorted(bytes_features))}."
        )
    if len(images) != 1:
        found = ", ".join(map(repr, images)) or "none"
        raise OptionError(
            f"{choices.data_dir}: the image features are {found}; expected exactly one. Give --image-key, one of: "
            f"{', '.join(sorted(bytes_features))}."
        )
    return images[0]


def _label_key(choices: Choices, schema: Schema, labels: Labels | None) -> str:
    integers = {
        key: feature for key, feature in schema.features.items() if (feature.dtype, feature.shape) == ("int64", ())
    }
    if choices.label_key is not None:
        return _known("--label-key", choices.label_key, integers, "one integer per record")
    if labels is not None and labels.key in integers:
        return labels.key
    if len(integers) != 1:
        raise OptionError(
            f"{choices.data_dir}: the features with one integer are {', '.join(sorted(integers)) or 'none'}; expected "
            "exactly one as the label. Give --label-key."
        )
    return next(iter(integers))


def _known(flag: str, key: str, allowed: Iterable[str], kind: str) -> str:
    if key not in allowed:
        raise OptionError(f"{flag}={key} is not {kind}.{did_you_mean(key, allowed)}")
    return key


def _at(names: tuple[str, ...], place: int) -> str | None:
    return names[place] if 0 <= place < len(names) else None


def _some(names: tuple[str, ...]) -> str:
    return f" ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})" if names else ""
