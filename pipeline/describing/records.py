"""Records on a page: the pictures, texts, names and labels of those with some numbers. NumPy and Pillow only.

The pages of datasets, evaluations and training steps use it."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import InfeedError
from pipeline.pages.page import Picture
from pipeline.pages.thumbnails import PIXELS, thumbnail, thumbnail_of_array
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.sources.examples import ExampleParser
from pipeline.sources.keys import FILE_NAME_KEYS
from pipeline.sources.records import Records, fetch, intact
from pipeline.spec import Layout

__all__ = ["ShownRecord", "TextOf", "is_picture", "label_text", "shortened", "show_records"]

MOST_TEXT = 1_000  # characters
_IMAGE_FILES = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"RIFF", b"BM")
OF_FILES = ("image/format", "image/colorspace")  # features that say nothing about what is seen
MOST_NUMBERS = 16  # of a feature
MOST_PICTURES = 12  # of a record
LEAST_SIDE = 4  # pixels; a smaller array with the shape of an image is hardly one

TextOf = Callable[[Mapping[str, Any]], str | None]
"""The text of a record's features, such as tokens; None if they have none."""


@dataclass(frozen=True)
class ShownRecord:
    """What a page shows of a record.

    number, where: of the record in its dataset, and of its bytes. name: of its file, or "". label: its number and name,
    or "". pictures, texts, numbers: of its features, at most 12 pictures. problem: why it cannot be shown, or ""."""

    number: int
    where: str
    name: str = ""
    label: str = ""
    pictures: Sequence[Picture] = ()
    texts: Sequence[str] = ()
    numbers: Sequence[str] = ()
    problem: str = ""


def show_records(
    records: Records, numbers: Sequence[int] | np.ndarray, text_of: TextOf | None = None, pixels: int = PIXELS
) -> list[ShownRecord]:
    """The records with these numbers, in this order. Those that are damaged have a `problem`.

    pixels: of the longer side of pictures. text_of: adds a text. Raises StorageError."""
    ids = np.asarray(numbers, np.int64)
    if not len(ids):
        return []
    parser = ExampleParser(records.layout, None)
    shown = []
    for number, record in zip(ids.tolist(), fetch(records, ids), strict=True):
        where = records.where(number)
        try:
            values = parser.parse(intact(record).payload, lambda where=where: where)
        except InfeedError as e:
            shown.append(ShownRecord(number, where, problem=str(e)))
        else:
            shown.append(_shown(records, number, where, values, text_of, pixels))
    return shown


def is_picture(array: np.ndarray) -> bool:
    """Whether this is the shape of an image: [height, width], or with 1 or 3 channels at the end."""
    sides = array.shape[:2]
    plain = array.ndim == 2 and array.dtype == np.uint8
    return (plain or (array.ndim == 3 and array.shape[2] in (1, 3))) and min(sides) >= LEAST_SIDE


def label_text(labels: Labels | None, label: int) -> str:
    """The number of a label, and its name if it has one."""
    place = label - labels.base if labels else -1
    return f"{label} {shortened(labels.names[place], 60)}" if labels and 0 <= place < labels.count else str(label)


def shortened(text: str, most: int = MOST_TEXT) -> str:
    """The text, or its beginning and its length."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def _shown(
    records: Records, number: int, where: str, values: Mapping[str, Any], text_of: TextOf | None, pixels: int
) -> ShownRecord:
    label = _label(records.labels, values)
    alt = f"record {number:,}{f', label {label}' if label else ''}"
    name = next((_text(values[key]) for key in FILE_NAME_KEYS if isinstance(values.get(key), bytes)), "")
    pictures = list(itertools.islice(_pictures(values, alt, pixels), MOST_PICTURES))
    texts = list(_texts(records.layout, values, label))
    if text_of and (text := text_of(values)):
        texts.append(_on_one_line(text))
    return ShownRecord(number, where, name, label, pictures, texts, list(_numbers(records, values)))


def _label(labels: Labels | None, values: Mapping[str, Any]) -> str:
    """All labels of the record, as text."""
    if not labels or labels.key not in values:
        return ""
    found = np.asarray(values[labels.key]).ravel()
    return ", ".join(label_text(labels, label) for label in found.tolist() if isinstance(label, int))


def _pictures(values: Mapping[str, Any], alt: str, pixels: int) -> Iterator[Picture]:
    """Pictures of all images, with the feature as part of their alternative text if there are several."""
    items = [(key, item) for key, value in values.items() for item in _items(value)]
    several = sum(map(_is_image, (item for _, item in items))) > 1
    for key, item in items:
        if _is_image(item) and (made := _picture(item, f"{alt}, {key}" if several else alt, pixels)):
            yield made


def _items(value: Any) -> list[Any]:
    return value.ravel().tolist() if isinstance(value, np.ndarray) and value.dtype == object else [value]


def _is_image(value: Any) -> bool:
    if isinstance(value, bytes):
        return value.startswith(_IMAGE_FILES)
    return isinstance(value, np.ndarray) and value.dtype.kind in "uif" and is_picture(value)


def _picture(value: Any, alt: str, pixels: int) -> Picture | None:
    return thumbnail(value, alt, pixels) if isinstance(value, bytes) else thumbnail_of_array(value, alt, pixels)


def _texts(layout: Layout, values: Mapping[str, Any], label: str) -> Iterator[str]:
    """The texts of a record, without those that its label and its file already state."""
    if not isinstance(layout, Schema):
        return
    for key, value in values.items():
        feature = layout.features.get(key)
        if feature and feature.content == "text" and key not in (*FILE_NAME_KEYS, *OF_FILES):
            for text in map(_text, np.asarray(value, object).ravel()):
                if text and not label.endswith(f" {text}"):
                    yield _on_one_line(f"{key}: {text}")


def _numbers(records: Records, values: Mapping[str, Any]) -> Iterator[str]:
    """Short numeric features, and the beginning of bytes that are neither image nor text."""
    features = records.layout.features if isinstance(records.layout, Schema) else {}
    for key, value in values.items():
        if isinstance(value, bytes) and not value.startswith(_IMAGE_FILES) and _is_raw(features.get(key)):
            yield f"{key}: {value[:8].hex(' ')}{' ...' * (len(value) > 8)} ({len(value):,} bytes)"
        elif not (records.labels and key == records.labels.key) and _is_short(value):
            yield f"{key}: {', '.join(f'{number:.6g}' for number in np.asarray(value).ravel().tolist())}"


def _is_short(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "iuf" and value.size <= MOST_NUMBERS


def _is_raw(feature: Feature | None) -> bool:
    return feature is None or feature.content == "raw"


def _on_one_line(text: str) -> str:
    return shortened(text).replace("\n", " ↵ ")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
