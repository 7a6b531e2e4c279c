"""Bounding boxes of objects: tables that list them, and their features.

Reads two kinds of tables: Kaggle's (`ImageId,PredictionString`: in pixels, with the synset of each
box) and those that tensorflow/models makes from ImageNet's XML files
(`n01440764_18.JPEG,xmin,ymin,xmax,ymax`: fractions of the image's sides, no header). References
store boxes as text, "x0 y0 x1 y1;...", with a "p" before a box in pixels."""

import csv
import functools
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

from pipeline.errors import RawDataError
from pipeline.shards.schema import Feature
from pipeline.storage.schemes import open_storage

_SIDES = ("xmin", "ymin", "xmax", "ymax")
_KEY = "image/object/bbox/"
BOX_FEATURES: Mapping[str, Feature] = {
    **{
        f"{_KEY}{side}": Feature("float32", (None,), doc="0..1, of the image's side; one an object")
        for side in _SIDES
    },
    f"{_KEY}label": Feature("int64", (None,), doc="the class of each object: the image's"),
}
BOX_BYTES = 4 * len(_SIDES) + 2  # that a box adds to a record


@functools.lru_cache(maxsize=2)  # ~100 MB per process for the 500,000 train images with boxes
def read_boxes(tables: tuple[str, ...]) -> Mapping[str, str]:
    """The boxes as text by image name without .JPEG. Raises RawDataError with table, line and
    reason."""
    boxes_of: dict[str, str] = {}
    for uri in tables:
        text = open_storage(uri).read(uri).decode("utf-8", "replace")
        for name, boxes in _rows(uri, io.StringIO(text, newline="")):
            boxes_of[name] = f"{boxes_of[name]};{boxes}" if name in boxes_of else boxes
    return boxes_of


def _rows(uri: str, text: Iterable[str]) -> Iterator[tuple[str, str]]:
    rows = csv.reader(text)
    row = []
    kaggle = False
    try:
        for row in rows:
            if rows.line_num == 1 and row[:2] == ["ImageId", "PredictionString"]:
                kaggle = True
            elif row:  # editors may leave a blank line at the end
                yield _kaggle(row) if kaggle else _relative(row)
    except csv.Error as e:
        raise RawDataError(
            f"{uri}, after line {rows.line_num}: not a csv table: {e}. It is damaged."
        ) from e
    except ValueError as e:
        raise RawDataError(
            f"{uri}, line {rows.line_num}: {','.join(row)[:80]!r} has no bounding boxes ({e}). Use "
            "Kaggle's table (ImageId,PredictionString) or lines like "
            "n01440764_18.JPEG,0.1,0.2,0.8,0.9 (xmin,ymin,xmax,ymax)."
        ) from None


def _kaggle(row: Sequence[str]) -> tuple[str, str]:
    name, prediction = row
    words = prediction.split()
    if not words or len(words) % 5:
        raise ValueError(f"{len(words)} words instead of 5 per box")
    boxes = (map(str, map(int, words[i + 1 : i + 5])) for i in range(0, len(words), 5))
    return name, ";".join(f"p{' '.join(box)}" for box in boxes)


def _relative(row: Sequence[str]) -> tuple[str, str]:
    name, *numbers = row
    if len(numbers) != len(_SIDES):
        raise ValueError(f"{len(row)} cells instead of 5")
    sides = [float(number) for number in numbers]
    if not all(map(math.isfinite, sides)):  # clipping would turn them into 0 or 1
        raise ValueError("numbers that are not finite")
    return name.removesuffix(".JPEG"), " ".join(map(repr, sides))


def box_features(
    text: str, height: int, width: int, label: int
) -> tuple[dict[str, list[float] | list[int]], int]:
    """A value for each of BOX_FEATURES, and the number of boxes left out because they are outside
    of the image."""
    boxes = [_clipped(box, height, width) for box in text.split(";") if box]
    inside = [box for box in boxes if box[0] < box[2] and box[1] < box[3]]
    sides = {f"{_KEY}{side}": list(map(itemgetter(i), inside)) for i, side in enumerate(_SIDES)}
    return {**sides, f"{_KEY}label": [label] * len(inside)}, len(boxes) - len(inside)


def _clipped(box: str, height: int, width: int) -> list[float]:
    pixels = box.startswith("p")
    numbers = [float(number) for number in box.removeprefix("p").split()]
    sizes = 2 * ((width, height) if pixels else (1, 1))
    return [min(1.0, max(0.0, number / size)) for number, size in zip(numbers, sizes, strict=True)]
