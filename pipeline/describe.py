"""python -m pipeline.describe DIR: shows a converted dataset: schema, splits, shard sizes, labels, a few records.

Reads the manifest and a sample of the records, or all of them with --all. Works on a disk or gs://; needs neither
TensorFlow nor Beam."""

if __name__ == "__main__":
    from pipeline.ctrl_c import leave_at_once

    leave_at_once()  # before the imports: they take seconds

import io
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Group
from rich.progress import track
from rich.table import Column, Table
from rich.text import Text

from pipeline.errors import OptionError, StorageError, printable
from pipeline.orders.hashing import splitmix64
from pipeline.shards.example_decoding import decode_example
from pipeline.shards.manifest import Manifest, read_manifest
from pipeline.shards.schema import Feature, Labels
from pipeline.sizes import format_bytes
from pipeline.sources.indexed_records import IndexedRecords
from pipeline.sources.records import fetch, intact, weighed
from pipeline.storage.schemes import open_storage
from pipeline.tokenizers import TextInfo
from pipeline.tools.command import Console, Parser, exit_with
from pipeline.tools.packed_text import TOTALS, find_text_info, row_text, text_totals
from pipeline.tools.record_checks import label_name, labels_of

__all__ = ["EXAMPLES", "main"]

EXAMPLES = ("shards", "shards --all --samples=5")

SAMPLED_RECORDS = 200  # per split: ~22 MB of ImageNet
_RECORDS_PER_READ = 64
_BINS, _BAR_WIDTH, _MAX_BARS, _MAX_TEXT, _MAX_ROW_TEXT = 8, 32, 20, 60, 600
_ALIKE = 1.02  # shards within 2 % count as equally large


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the description. Raises InfeedError."""
    parser = Parser("pipeline.describe", __doc__, EXAMPLES, ("pipeline.verify", "pipeline.index"))
    parser.add_argument("directory", metavar="DIR", help="a converted dataset: the directory of manifest.json")
    parser.add_argument("--all", action="store_true", help=f"count the labels of all records, not of {SAMPLED_RECORDS}")
    parser.add_argument("--samples", type=int, default=2, help="number of records to show per split (default: 2)")
    args = parser.parse_args(argv)
    if args.samples < 0:
        raise OptionError(f"--samples={args.samples}: must be at least 0.")
    console = Console()
    manifest = read_manifest(args.directory)
    text = _text_info(manifest)
    console.print(_schema_table(manifest), _splits_table(manifest))
    if text:
        console.print(_text_table(manifest, text))
    for split, entry in sorted(manifest.splits.items()):
        identity = f"{split}: fingerprint {entry.fingerprint}, plan {entry.plan_digest}, seed {entry.seed}"
        console.print(identity, markup=False, highlight=False, soft_wrap=True)
        console.print(_shard_bars(split, [shard.bytes for shard in entry.shards]))
        if entry.num_records:
            reader = IndexedRecords(manifest, split, open_storage(args.directory))
            if manifest.labels:
                console.print(_label_bars(reader, manifest.labels, args.all))
            for number in _spread(reader.num_records, args.samples).tolist():
                console.print(_record_table(reader, number, text))


def _schema_table(manifest: Manifest) -> Table:
    title = f"{manifest.name}, schema {manifest.schema.name!r}, written by {manifest.writer or 'an unknown program'}"
    table = _table(title, "feature", "dtype", "shape", "holds", "meaning")
    for key, feature in sorted(manifest.schema.features.items()):
        shape = "any number" if None in feature.shape else "x".join(map(str, feature.shape)) or "one"
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


def _text_info(manifest: Manifest) -> TextInfo | None:
    try:
        return find_text_info(manifest)
    except (OptionError, StorageError) as e:  # the rest can be described all the same; verify reports it as damage
        Console(stderr=True).print(f"warning: {printable(str(e))}", markup=False, soft_wrap=True)
        return None


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


def _shard_bars(split: str, sizes: Sequence[int]) -> Group:
    low, high = min(sizes), max(sizes)
    alike = high <= _ALIKE * low
    counts, edges = np.histogram(sizes, bins=1 if alike else _BINS, range=(low, high))
    names = [f"{format_bytes(a)} to {format_bytes(b)}" for a, b in itertools.pairwise(edges)]
    return _bars(f"{split}: shards by size", list(zip(names, counts.tolist(), strict=True)), "shards")


def _label_bars(reader: IndexedRecords, labels: Labels, every: bool) -> Group:
    total = reader.num_records
    ids = np.arange(total) if every else _sample(total, SAMPLED_RECORDS)
    counts = _count_labels(reader, labels, ids)
    ranked = counts.most_common()
    whose = f"all {total:,} records" if len(ids) == total else f"a sample of {len(ids):,} of {total:,} records"
    title = f"{reader.split}: labels of {whose}; {len(ranked):,} of {len(labels.names):,} classes occur"
    if len(ranked) > _MAX_BARS:
        half = _MAX_BARS // 2
        ranked = ranked[:half] + ranked[-half:]
        title += f"; shown are the {half} most and the {half} least frequent"
    else:
        ranked.sort()
    return _bars(title, [(_label(labels, label), count) for label, count in ranked], "records")


def _count_labels(reader: IndexedRecords, labels: Labels, ids: np.ndarray) -> Counter[int]:
    console, counts = Console(stderr=True), Counter()
    groups = [ids[at : at + _RECORDS_PER_READ] for at in range(0, len(ids), _RECORDS_PER_READ)]
    found, hidden = reader.read(weighed(reader, groups)), not console.is_terminal
    for records in track(found, "reading", len(groups), console=console, disable=hidden, transient=True):
        for record in records:
            counts.update(labels_of(labels, decode_example(intact(record).payload)))
    return counts


def _label(labels: Labels, label: int) -> str:
    name = label_name(labels, label)
    return f"{label} {'(outside the range)' if name is None else name}"


def _bars(title: str, rows: Sequence[tuple[str, int]], unit: str) -> Group:
    table = _table("", "", unit, "")
    most = max((count for _, count in rows), default=0)
    for name, count in rows:
        _add(table, name, f"{count:,}", "█" * round(_BAR_WIDTH * count / most) or ("▏" if count else ""))
    return Group(Text(f"\n{title}"), table)  # a table would wrap its own title to its width


def _spread(total: int, wanted: int) -> np.ndarray:
    """Record numbers (all, if there are no more), spread evenly over the split."""
    return np.arange(min(wanted, total)) * total // max(1, min(wanted, total))


def _sample(total: int, wanted: int) -> np.ndarray:
    """Like _spread, but random within each step, in case labels are periodic. The same numbers in every run."""
    starts = _spread(total, wanted)
    return starts + (splitmix64(starts.astype(np.uint64)) % np.diff(starts, append=total).astype(np.uint64)).astype(int)


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
            text = ", ".join(_label(manifest.labels, label) for label in labels_of(manifest.labels, values))
        _add(table, key, text)
    if info:
        _add(table, "(text)", _shortened(row_text(info, values), _MAX_ROW_TEXT))
    return table


def _shortened(text: str, most: int = _MAX_TEXT) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def _item(feature: Feature | None, item: Any) -> str:
    if not isinstance(item, bytes):
        return f"{item:.6g}" if isinstance(item, float) else str(item)
    if feature and feature.content == "image":
        return f"{_image(item)}, {format_bytes(len(item))}"
    if feature and feature.content == "text":
        return _shortened(item.decode("utf-8", "backslashreplace"))
    return f"{item[:8].hex(' ')}{' ...' if len(item) > 8 else ''} ({format_bytes(len(item))})"


def _image(data: bytes) -> str:
    try:
        with Image.open(io.BytesIO(data)) as image:
            return f"{image.format} {image.width}x{image.height} {image.mode}"
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as e:
        return f"unreadable image ({str(e)[:_MAX_TEXT]})"


if __name__ == "__main__":
    exit_with(main)
