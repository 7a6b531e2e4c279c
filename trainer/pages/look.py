"""The page of --mode look: training records as stored and as the model sees them, and the features of a batch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.describing.labels import label_text, shortened
from pipeline.describing.shown_records import MOST_TEXT, ShownRecord, TextOf
from pipeline.pages.page import Cell, Note, Page, Picture, Section, Shown, Table
from pipeline.pages.thumbnails import is_picture, thumbnail_of_array
from pipeline.shards.schema import Labels
from trainer.results import Look

__all__ = ["LookedAt", "look_page"]

Ranges = Mapping[str, tuple[float, float]]
MOST_LINES, MOST_NUMBERS, SHARES = 8, 6, 3
SAME = "The draws are all the same, so one is shown: neither the input's ops nor the augmentation is random."
ONCE = "The input cannot draw a record again, so its first batch is shown, once."
REPEATS = "The training repeats its first batches unchanged, as overfit_batches asks, so the first one is shown, once."
SCALED = "Images that are not uint8 are scaled: the smallest value in the batch is black, the largest is white."


@dataclass(frozen=True)
class LookedAt:
    """What the page says besides the look.

    stored: its records as stored, in their order; empty if not known. repeats: whether the training repeats its first
    batches. made_by: see Page."""

    recipe: str
    stored: Sequence[ShownRecord] = ()
    labels: Labels | None = None
    text_of: TextOf | None = None
    repeats: bool = False
    made_by: str = ""


def look_page(look: Look, about: LookedAt) -> Page:
    """The page of this look."""
    same = len(look.draws) > 1 and all(_equal(look.draws[0], draw) for draw in look.draws[1:])
    draws = look.draws[:1] if same else look.draws
    count = len(next(iter(look.draws[0].values())))
    notes = [Note(SAME)] if same else []
    if look.first_batch:
        notes.append(Note(REPEATS if about.repeats else ONCE))
    ranges = dict(_ranges(look.batch))
    if ranges:
        notes.append(Note(SCALED))
    columns = ["record", *["as stored"] * bool(about.stored), *_titles(draws)]
    rows = [_row(row, look, draws, ranges, about) for row in range(count)]
    sections = [
        Section("What the model sees", [*notes, Table(columns, rows)]),
        Section("Features of a batch", [_features(look.batch)]),
    ]
    lead = f"{count:,} training records, after the input's ops and the augmentation on the device."
    return Page(f"{about.recipe}: what the model sees", lead, sections, about.made_by)


def _titles(draws: Sequence[Mapping[str, np.ndarray]]) -> list[str]:
    return ["as the model sees it"] if len(draws) == 1 else [f"epoch {epoch}" for epoch in range(len(draws))]


def _row(
    row: int, look: Look, draws: Sequence[Mapping[str, np.ndarray]], ranges: Ranges, about: LookedAt
) -> list[Cell]:
    number = row if look.numbers is None else int(look.numbers[row])
    cells: list[Cell] = []
    if about.stored:
        record = about.stored[row]
        cells.append(Shown((), [f"{number:,}", record.name or record.where]))
        cells.append(Shown(record.pictures, [record.label, *record.texts, record.problem]))
    else:
        cells.append(f"{number:,}")
    alt = f"record {number:,} as the model sees it"
    for draw in draws:
        features = {name: values[row] for name, values in draw.items() if not name.startswith("_")}
        cells.append(Shown(list(_pictures(features, ranges, alt)), [*_lines(features, about)][:MOST_LINES]))
    return cells


def _pictures(features: Mapping[str, np.ndarray], ranges: Ranges, alt: str) -> Iterator[Picture]:
    for name, values in features.items():
        if _is_image(values):
            pixels = _scaled(values, *ranges[name]) if name in ranges else values
            yield thumbnail_of_array(pixels, f"{alt}: {name}")


def _scaled(values: np.ndarray, low: float, high: float) -> np.ndarray:
    scaled = (values.astype(np.float32) - low) * (255 / ((high - low) or 1))
    return np.nan_to_num(scaled.clip(0, 255)).round().astype(np.uint8)


def _lines(features: Mapping[str, np.ndarray], about: LookedAt) -> Iterator[str]:
    """The features that are not pictures, in words."""
    text = about.text_of(features) if about.text_of else None
    if text is not None:
        yield shortened(text, MOST_TEXT).replace("\n", " ↵ ")
    for name, values in features.items():
        if _is_image(values) or (text is not None and values.ndim):
            continue
        labels = about.labels
        if labels and name == labels.key and not values.ndim and values.dtype.kind in "iu":
            yield f"{name}: {label_text(labels, int(values))}"
        else:
            yield f"{name}: {_soft_labels(values, labels) or _numbers(values)}"


def _soft_labels(values: np.ndarray, labels: Labels | None) -> str:
    """The largest shares of classes; "" if these numbers are none."""
    shares = values.astype(np.float64)
    if values.dtype.kind != "f" or values.ndim != 1 or shares.min(initial=0) < 0 or abs(shares.sum() - 1) > 1e-3:
        return ""
    known = labels.names if labels and labels.count == len(values) else ()
    largest = np.argsort(-shares, kind="stable")[:SHARES]
    return ", ".join(f"{known[at] if known else at} {shares[at]:.1%}" for at in largest.tolist() if shares[at] > 0)


def _numbers(values: np.ndarray) -> str:
    flat = values.ravel()
    shown = ", ".join(f"{value:.4g}" for value in flat[:MOST_NUMBERS].tolist())
    return shown if len(flat) <= MOST_NUMBERS else f"{shown}, ... ({len(flat):,} numbers)"


def _features(batch: Mapping[str, np.ndarray]) -> Table:
    rows: list[list[Cell]] = []
    for name, values in batch.items():
        if name.startswith("_"):
            continue
        numbers = values.astype(np.float64)
        low, mean, high = (numbers.min(), numbers.mean(), numbers.max()) if values.size else (np.nan,) * 3
        rows.append([name, str(values.dtype), str(list(values.shape[1:])), float(low), float(mean), float(high)])
    count = len(next(iter(batch.values())))
    note = f"Over {count:,} records, a batch of this host. Shapes are those of one record."
    return Table(("feature", "dtype", "shape", "min", "mean", "max"), rows, note=note)


def _ranges(batch: Mapping[str, np.ndarray]) -> Iterator[tuple[str, tuple[float, float]]]:
    """The smallest and the largest number of images that are not uint8."""
    for name, values in batch.items():
        if values.ndim > 1 and len(values) and values.dtype != np.uint8 and _is_image(values[0]):
            numbers = values.astype(np.float32)
            finite = numbers[np.isfinite(numbers)]
            yield name, (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)


def _is_image(values: np.ndarray) -> bool:
    return values.dtype.kind in "uifV" and is_picture(values)


def _equal(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    names = [name for name in one if not name.startswith("_")]
    return all(one[name].tobytes() == other[name].tobytes() for name in names)
