"""The page of a dataset: what it is, its splits, labels, samples and distributions, and how to read
it. dataset_page.html draws it."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from pipeline.commands import dataset_reading as reading
from pipeline.commands.dataset_facts import (
    FEATURES,
    SPLITS,
    TOTALS,
    LabelCounts,
    feature_rows,
    shard_sizes,
    split_rows,
    text_totals,
)
from pipeline.commands.record_facts import SIDES
from pipeline.commands.split_facts import SplitFacts, fitting
from pipeline.pages.figures import histogram
from pipeline.pages.page import page_html
from pipeline.pages.shown_records import ShownRecord
from pipeline.shards.copies import counted_copies, found_copies
from pipeline.shards.manifest import Manifest
from pipeline.shards.naming import rejects_file
from pipeline.sizes import counted
from pipeline.tokenizers import TextInfo

TEMPLATE = Path(__file__).with_suffix(".html")
MOST_CHARTS = 60  # of a page: 0.3 MB
MOST_LABELS = 60
MOST_COLUMNS = 60  # of a table of samples
MOST_REASONS = 30
MOST_LINES = 3  # texts, and values, below a picture


def dataset_page(
    manifest: Manifest, splits: Sequence[SplitFacts], text: TextInfo | None, made_by: str
) -> str:
    """The page: what people look for first is open, the rest is folded. text: how its text became
    tokens, if it is packed text."""
    charts = max(1, MOST_CHARTS // max(1, len(splits)))
    drawn = [_drawn(manifest, split, charts) for split in fitting(splits)]
    sides = [
        values.kept
        for split in splits
        for measure, values in split.facts.values.items()
        if measure.kind == SIDES
    ]
    side = int(np.median(np.concatenate(sides))) if sides else None
    facts = {
        "title": PurePosixPath(manifest.directory).name or manifest.name,
        "lead": f"{manifest.name}, in {manifest.directory}",
        "made_by": made_by,
        "manifest": manifest,
        "splits": drawn,
        "copies": found_copies(manifest),
        "counted": counted_copies(manifest),
        "main": max(
            drawn,
            key=lambda split: (split["name"] == "train", split["entry"].num_records),
            default=None,
        ),
        "num_samples": sum(len(split.samples) for split in splits),
        "split_table": (SPLITS, [*split_rows(manifest)]),
        "features": (FEATURES, [*feature_rows(manifest)]),
        "text": text,
        "totals": text and (TOTALS, [*text_totals(manifest, text)]),
        "most_reasons": MOST_REASONS,
        "recipe": reading.recipe_of(manifest),
        "commands": reading.commands(manifest, side),
        "program": reading.python(manifest, side),
    }
    return page_html(TEMPLATE, facts)


def _drawn(manifest: Manifest, split: SplitFacts, most_charts: int) -> dict[str, Any]:
    """A split as the template draws it."""
    entry = manifest.splits[split.name]
    facts = split.facts
    changing, same = [], []
    for measure, values in sorted(facts.values.items(), key=lambda item: item[0].kind):
        if values.count and values.low == values.high and not values.bad:
            same.append((measure.title, values.low))
        elif values.count:
            changing.append((measure, values))
    pictured = [record for record in split.samples if record.pictures]
    return {
        **vars(split),
        "entry": entry,
        "labels": _labels(manifest, split),
        "pictures": [(record.pictures, _caption(record)) for record in pictured],
        "pictured": list(dict.fromkeys(key for record in pictured for key in record.pictured)),
        "table": _sample_table([record for record in split.samples if not record.pictures]),
        "shards": shard_sizes(entry),
        "charts": [
            (measure.title, values.count, histogram(values.kept, measure.unit, values.note))
            for measure, values in changing[:most_charts]
        ],
        "more_charts": len(changing) - most_charts,
        "same": same,
        "rejects_file": rejects_file(split.name),
    }


def _labels(manifest: Manifest, split: SplitFacts) -> dict[str, Any] | None:
    """How many records of the split have each label; None if none are known."""
    labels = manifest.labels
    counts = split.facts.labels
    if not labels or not counts:
        return None
    known = LabelCounts(labels, counts)
    rows, note = known.rows(MOST_LABELS)
    of_classes = [counts[label] for label in range(labels.base, labels.base + labels.count)]
    low, high = min(of_classes), max(of_classes)
    each = f"{low:,} to {high:,}" if high > low else f"{low:,}"
    return {"rows": rows, "note": note, "each": each, "known": known}


def _sample_table(records: Sequence[ShownRecord]) -> dict[str, Any]:
    """A row for each record, with a column for each feature that has values."""
    features = list(dict.fromkeys(key for record in records for key in record.values))
    shown = features[:MOST_COLUMNS]
    rows = []
    for record in records:
        text = record.problem or " · ".join(record.texts)
        values = [record.values.get(key, "") for key in shown]
        rows.append((record.number, record.label, record.name, text, *values))
    names = ("record", "label", "file", "text", *shown)
    return {"names": names, "rows": rows, "more": len(features) - len(shown)}


def _caption(record: ShownRecord) -> list[str]:
    """The lines below the pictures of a record."""
    values = [f"{key}: {value}" for key, value in record.values.items()]
    lines = [record.label, record.name, f"record {record.number:,}"]
    for what, more in (("text", record.texts), ("feature", values)):
        lines += more[:MOST_LINES]
        if len(more) > MOST_LINES:
            lines.append(f"and {counted(len(more) - MOST_LINES, f'more {what}')}")
    return lines
