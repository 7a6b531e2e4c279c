"""The description of a dataset, printed: tables, and bars of characters. Data never act as markup or control codes."""

import io
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError
from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from pipeline.describing.facts import damage, gathered, looked_at, shard_sizes, spread
from pipeline.describing.labels import label_rows, label_text, occurring, outside, shortened
from pipeline.errors import printable
from pipeline.pages.thumbnails import UNREADABLE
from pipeline.shards.example_decoding import decode_example
from pipeline.shards.manifest import Manifest
from pipeline.shards.schema import Feature, Labels
from pipeline.sizes import format_bytes
from pipeline.sources.indexed_records import IndexedRecords
from pipeline.sources.records import fetch, intact
from pipeline.storage.schemes import open_storage
from pipeline.tokenizers import TextInfo
from pipeline.tools.command import Console
from pipeline.tools.packed_text import TOTALS, row_text, text_totals
from pipeline.tools.record_checks import labels_of

__all__ = ["print_description"]

_BAR_WIDTH, _MAX_BARS, _MAX_TEXT, _MAX_ROW_TEXT = 32, 20, 60, 600


def print_description(manifest: Manifest, text: TextInfo | None, samples: int, every: bool, progress: Any) -> None:
    """Prints schema, splits, shard sizes, labels and, of each split, this number of records.

    text: how its text became tokens, if it is packed text. every: counts the labels of all records. progress: see
    gathered. Raises InfeedError."""
    console = Console()
    console.print(_schema_table(manifest), _splits_table(manifest))
    if text:
        console.print(_text_table(manifest, text))
    for split, entry in sorted(manifest.splits.items()):
        identity = f"{split}: fingerprint {entry.fingerprint}, plan {entry.plan_digest}, seed {entry.seed}"
        console.print(identity, markup=False, highlight=False, soft_wrap=True)
        console.print(_bars(f"{split}: shards by size", shard_sizes(entry), "shards"))
        if entry.num_records:
            reader = IndexedRecords(manifest, split, open_storage(manifest.directory))
            if manifest.labels:
                console.print(_label_bars(reader, manifest.labels, every, progress))
            for number in spread(reader.info.num_records, samples).tolist():
                console.print(_record_table(reader, number, text))


def _schema_table(manifest: Manifest) -> Table:
    title = f"{manifest.name}, schema {manifest.schema.name!r}, written by {manifest.writer or 'an unknown program'}"
    table = _table(title, "feature", "dtype", "shape", "holds", "meaning")
    for key, feature in sorted(manifest.schema.features.items()):
        shape = "any length" if None in feature.shape else "x".join(map(str, feature.shape)) or "1 value"
        holds = feature.content if feature.dtype == "bytes" else ""
        _add(table, key, feature.dtype, shape, holds, feature.doc + (" (optional)" if feature.optional else ""))
    return table


def _splits_table(manifest: Manifest) -> Table:
    table = _table("Splits", "split", "records", "bytes", "shards", "rejected", "fix-ups")
    for name, entry in sorted(manifest.splits.items()):
        fixups = ", ".join(f"{kind} {count:,}" for kind, count in sorted(entry.fixups.items())) or "none"
        size, shards = format_bytes(entry.num_bytes), f"{len(entry.shards):,}"
        _add(table, name, f"{entry.num_records:,}", size, shards, f"{entry.rejected:,}", fixups)
    return table


def _text_table(manifest: Manifest, info: TextInfo) -> Table:
    title = f"Text: tokenizer {info.tokenizer.name}, rows of {info.sequence_length:,} tokens, packing {info.packing}"
    table = _table(title, *TOTALS)
    for row in text_totals(manifest, info):
        _add(table, *row)
    return table


def _table(title: str, *columns: str) -> Table:
    headers = (Column(name, overflow="fold") for name in columns)
    return Table(*headers, title=Text(title) if title else None, title_justify="left")


def _add(table: Table, *cells: str) -> None:
    """Adds a row of plain text: data must not act as markup or as terminal control codes."""
    table.add_row(*(Text(printable(cell)) for cell in cells))


def _label_bars(reader: IndexedRecords, labels: Labels, every: bool, progress: Any) -> Group:
    ids, whose = looked_at(reader.info.num_records, every)
    facts = gathered(reader, ids, progress, only_labels=True)
    counts = facts.labels
    rows, told = label_rows(counts, _MAX_BARS, partial(label_text, labels))
    title = f"{reader.split}: labels of {whose}; {occurring(labels, counts)}."
    return _bars(" ".join(filter(None, [title, outside(labels, counts), told, damage(facts, reader)])), rows, "records")


def _bars(title: str, rows: Sequence[tuple[str, int]], unit: str) -> Group:
    table = _table("", "", unit, "")
    most = max((count for _, count in rows), default=0)
    for name, count in rows:
        _add(table, name, f"{count:,}", "█" * round(_BAR_WIDTH * count / most) or ("▏" if count else ""))
    return Group(Text(f"\n{title}"), table)  # a table would wrap its own title to its width


def _record_table(reader: IndexedRecords, number: int, info: TextInfo | None) -> Table:
    payload = intact(*fetch(reader, np.array([number]))).payload
    table = _table(f"{reader.split}: record {number:,}, {format_bytes(len(payload))}", "feature", "value")
    manifest = reader.manifest
    values = {"(opaque)": [payload]} if manifest.schema.opaque else decode_example(payload)
    for key, items in sorted(values.items()):
        feature = manifest.schema.features.get(key)
        text = ", ".join(_item(feature, item) for item in items[:4])
        text += f", ... ({len(items)} values)" if len(items) > 4 else ""
        if manifest.labels and key == manifest.labels.key:
            text = ", ".join(label_text(manifest.labels, label) for label in labels_of(manifest.labels, values))
        _add(table, key, text)
    if info:
        _add(table, "(text)", shortened(row_text(info, values), _MAX_ROW_TEXT))
    return table


def _item(feature: Feature | None, item: Any) -> str:
    if not isinstance(item, bytes):
        return f"{item:.6g}" if isinstance(item, float) else str(item)
    if feature and feature.content == "image":
        return f"{_image(item)}, {format_bytes(len(item))}"
    if feature and feature.content == "text":
        return shortened(item.decode("utf-8", "backslashreplace"), _MAX_TEXT)
    return f"{item[:8].hex(' ')}{' ...' if len(item) > 8 else ''} ({format_bytes(len(item))})"


def _image(data: bytes) -> str:
    try:
        with Image.open(io.BytesIO(data)) as image:
            return f"{image.format} {image.width}x{image.height} {image.mode}"
    except UnidentifiedImageError:  # its text has the address of an object
        return "unreadable image (no image that Pillow recognizes)"
    except UNREADABLE as e:
        return f"unreadable image ({str(e)[:_MAX_TEXT]})"
