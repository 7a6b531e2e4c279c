"""Records on a page: the pictures, texts, names and labels of those with some numbers. NumPy and
Pillow only.

The pages of datasets, evaluations and training steps use it."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.errors import InfeedError, SchemaError
from pipeline.pages.figures import Picture, is_picture, thumbnail, thumbnail_of_array
from pipeline.parsing import RecordParser
from pipeline.raw.jpeg import HEIC
from pipeline.shards.schema import Content, Feature, Labels, Schema
from pipeline.sizes import counted
from pipeline.sources.indexed_records import FILE_NAME_KEYS
from pipeline.sources.records import Records, RecordsInfo, fetch, intact

MOST_TEXT, MOST_NAME = 1_000, 60  # characters
_IMAGE_FILES = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"RIFF", b"BM")
OF_FILES = ("image/format", "image/colorspace", "image/channels", "image/height", "image/width")
"""Features that repeat what the page measures of the images."""
# of a feature: all if they are at most 16 numbers, or else the first four
MOST_VALUES, FIRST_VALUES = (16, 4)
MOST_PICTURES = 12  # of a record

Features = Mapping[str, Feature]
Values = Mapping[str, Any]
"""The features of a record."""
TextOf = Callable[[Values], str | None]
"""The text of a record's features, such as tokens; None if they have none."""


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and its length."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def label_text(labels: Labels, label: int) -> str:
    """The number of a label, and its name if it has one."""
    name = labels.name_of(label)
    return f"{label} {'(outside the range)' if name is None else shortened(name, MOST_NAME)}"


@dataclass(frozen=True)
class ShownRecord:
    """What a page shows of a record.

    number, where: of the record in its dataset, and of its bytes.
    name: of its file, or "".
    label: its name, or number, or "".
    pictures, texts: of its features, at most 12 pictures.
    pictured: the feature of each picture.
    values: feature -> its numbers or bytes, in words.
    problem: why it cannot be shown, or ""."""

    number: int
    where: str
    name: str = ""
    label: str = ""
    pictures: Sequence[Picture] = ()
    texts: Sequence[str] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    pictured: Sequence[str] = ()


def show_records(
    records: Records, numbers: Sequence[int] | np.ndarray, text_of: TextOf | None = None
) -> list[ShownRecord]:
    """The records with these numbers, in this order. Those that are damaged have a `problem`.

    text_of: adds a text. Raises StorageError."""
    ids = np.asarray(numbers, np.int64)
    if not len(ids):
        return []
    parser = RecordParser(records.info.layout, None)
    shown = []
    for number, record in zip(ids.tolist(), fetch(records, ids), strict=True):
        where = records.where(number)
        try:
            values = records.info.in_common(parser(intact(record)[0]), number)
        except SchemaError as e:
            shown.append(ShownRecord(number, where, problem=f"{where}: {e}"))
        except InfeedError as e:
            shown.append(ShownRecord(number, where, problem=str(e)))
        else:
            shown.append(_shown(records.info, number, where, values, text_of))
    return shown


def _shown(
    source: RecordsInfo, number: int, where: str, values: Values, text_of: TextOf | None
) -> ShownRecord:
    """The record with these values, as a page shows it."""
    features = source.layout.features if isinstance(source.layout, Schema) else {}
    label = _label(source.labels, values)
    alt = f"record {number:,}{f', label {label}' if label else ''}"
    name = next(
        (_text(values[key]) for key in FILE_NAME_KEYS if isinstance(values.get(key), bytes)), ""
    )
    images = list(_images(features, values))
    pictures = list[Picture]()
    pictured = list[str]()  # the feature of each
    texts = list[str]()
    for key, item in images[:MOST_PICTURES]:
        draw: Any = thumbnail if isinstance(item, bytes) else thumbnail_of_array
        if picture := draw(item, f"{alt}, {key}" if len(images) > 1 else alt):
            pictures.append(picture)
            pictured.append(key)
        elif _holds(features, key) == "image":
            texts.append(f"{key}: unreadable image ({len(item):,} bytes)")
    if len(images) > MOST_PICTURES:
        texts.append(f"the first {MOST_PICTURES} of {len(images):,} images")
    texts += _texts(features, values, label)
    text = text_of(values) if text_of else None
    if text:
        texts.append(_on_one_line(text))
    shown_elsewhere = [*pictured, source.labels and source.labels.key]
    rest = {
        key: value
        for key, value in values.items()
        if key not in shown_elsewhere and not (text and _is_long(value))
    }
    words = dict(_values(features, rest))
    return ShownRecord(number, where, name, label, pictures, texts, words, pictured=pictured)


def _label(labels: Labels | None, values: Values) -> str:
    """All labels of the record, as text."""
    if not labels or labels.key not in values:
        return ""
    numbers = np.asarray(values[labels.key]).ravel()
    return ", ".join(_name(labels, label) for label in numbers.tolist() if isinstance(label, int))


def _name(labels: Labels, label: int) -> str:
    name = labels.name_of(label)
    return label_text(labels, label) if name is None else shortened(name, MOST_NAME)


def _images(features: Features, values: Values) -> Iterator[tuple[str, Any]]:
    """(feature, value) of all that are images by the schema, by the beginning of their bytes, or by
    their shape."""
    for key, value in values.items():
        holds = _holds(features, key)
        for item in _items(value):
            if isinstance(item, bytes):
                absent = not item and key in features and features[key].optional
                if (holds == "image" and not absent) or (
                    holds == "raw" and (item.startswith(_IMAGE_FILES) or re.match(HEIC, item))
                ):
                    yield key, item
            elif isinstance(item, np.ndarray) and item.dtype.kind in "uif" and is_picture(item):
                yield key, item


def _holds(features: Features, key: str) -> Content:
    return features[key].content if key in features else "raw"


def _items(value: Any) -> list[Any]:
    return (
        value.ravel().tolist()
        if isinstance(value, np.ndarray) and value.dtype == object
        else [value]
    )


def _texts(features: Features, values: Values, label: str) -> Iterator[str]:
    """The texts of a record, without those that its label and its file already state, each with its
    feature if the data has several."""
    keys = [
        key
        for key in features
        if _holds(features, key) == "text" and key not in (*FILE_NAME_KEYS, *OF_FILES)
    ]
    for key in filter(values.__contains__, keys):
        for text in map(_text, np.asarray(values[key], object).ravel()):
            if text and text != label:
                yield _on_one_line(f"{key}: {text}" if len(keys) > 1 else text)


def _values(features: Features, values: Values) -> Iterator[tuple[str, str]]:
    """(feature, its first values) of numbers, and of bytes that are neither image nor text."""
    for key, value in values.items():
        if key in OF_FILES:
            continue
        items = np.asarray(value, object if isinstance(value, bytes) else None).ravel()
        if items.size and _holds(features, key) == "raw" and items.dtype.kind in "biufO":
            count = FIRST_VALUES if _is_long(value) or items.dtype == object else items.size
            more = f", ... ({items.size:,} values)" if items.size > count else ""
            yield key, ", ".join(map(item_text, items[:count].tolist())) + more


def _is_long(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.size > MOST_VALUES


def item_text(value: Any) -> str:
    """A number, or the beginning of bytes, as pages and commands show them."""
    if isinstance(value, bytes):
        return f"{value[:8].hex(' ')}{' ...' * (len(value) > 8)} ({counted(len(value), 'byte')})"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _on_one_line(text: str) -> str:
    return shortened(text, MOST_TEXT).replace("\n", " ↵ ")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
