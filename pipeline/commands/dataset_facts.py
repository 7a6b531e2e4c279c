"""Facts about the records of a split, gathered in one pass: labels, numbers, lengths, and sizes of
images.

Memory does not grow with the records: of each feature a bounded number of values is kept."""

import io
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image
from rich.progress import track

from pipeline.commands.dataset_texts import Values
from pipeline.commands.index_builder import labels_of
from pipeline.console.console import Console
from pipeline.errors import InfeedError
from pipeline.orders.shuffle import splitmix64
from pipeline.pages.figures import UNREADABLE
from pipeline.shards.example_decoding import decode_example
from pipeline.shards.manifest import Manifest, SplitEntry
from pipeline.sizes import MB, format_bytes
from pipeline.sources.indexed_records import IndexedRecords
from pipeline.sources.records import intact, weighed
from pipeline.tokenizers import PACKED_TEXT

RECORDS_PER_READ = 256
SAMPLED_RECORDS = 200  # of a split, unless all are asked for: ~22 MB of ImageNet
# up to here all labels are counted, which takes at most about 10 seconds
ALL_RECORDS = 100_000
ALL_BYTES = 250 * MB
SEGMENTS = "segments"
# of decoded values, by dtype of the schema
KINDS = {bytes: "bytes", int: "int64", float: "float32"}
FEATURES = ("feature", "dtype", "shape", "holds", "meaning")
SPLITS = ("split", "records", "size", "shards", "rejected", "changed")
FIXUPS = {"alpha_on_white": "transparency made white", "cmyk_to_rgb": "CMYK to RGB"}
SIZE_RANGES, ALIKE = 8, 1.02  # of shards; within 2 % they count as equally large


def _by_feature() -> dict[str, Values]:
    return defaultdict(Values)


@dataclass
class Facts:
    """Facts about records.

    records: how many were read.
    damaged: how many others could not be.
    labels: label -> count.
    formats: of images, such as "JPEG RGB" -> count. The others are by feature.
    numbers: its values.
    lengths: how many values a record has, if that varies; of packed text, how many tokens its
        SEGMENTS have.
    sizes: bytes of each image, text or other value.
    widths, heights: of images, in pixels.
    misfits: in how many records it has another dtype than in the schema."""

    records: int = 0
    damaged: int = 0
    labels: Counter[int] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    misfits: Counter[str] = field(default_factory=Counter)
    numbers: dict[str, Values] = field(default_factory=_by_feature)
    lengths: dict[str, Values] = field(default_factory=_by_feature)
    sizes: dict[str, Values] = field(default_factory=_by_feature)
    widths: dict[str, Values] = field(default_factory=_by_feature)
    heights: dict[str, Values] = field(default_factory=_by_feature)


def spread(total: int, count: int) -> np.ndarray:
    """Record numbers (all, if there are no more), spread evenly over the split."""
    count = min(count, total)
    return np.arange(count) * total // max(1, count)


def sample(total: int, count: int) -> np.ndarray:
    """Like spread, but random within each step, in case labels are periodic. The same numbers in
    every run."""
    starts = spread(total, count)
    return starts + (
        splitmix64(starts.astype(np.uint64)) % np.diff(starts, append=total).astype(np.uint64)
    ).astype(int)


def gathered(reader: IndexedRecords, ids: np.ndarray, *, only_labels: bool = False) -> Facts:
    """The facts of these records. Shows the progress on a terminal.

    only_labels: leaves out everything else, which takes longer. Raises StorageError."""
    manifest = reader.manifest
    facts = Facts()
    groups = np.split(ids, range(RECORDS_PER_READ, len(ids), RECORDS_PER_READ))
    batches = reader.read(weighed(reader, groups))
    console = Console(stderr=True)
    hidden = not console.is_terminal
    for records in track(
        batches, "reading", len(groups), console=console, disable=hidden, transient=True
    ):
        for record in records:
            try:
                values = decode_example(intact(record)[0])
            except InfeedError:
                facts.damaged += 1
                continue
            facts.records += 1
            facts.labels.update(labels_of(manifest.labels, values))
            if not only_labels:
                _add(facts, manifest, values)
    return facts


def damage(facts: Facts, reader: IndexedRecords) -> str:
    """Two sentences about damaged records; "" if there are none."""
    if not facts.damaged:
        return ""
    left_out = (
        f"{facts.damaged:,} record{'s are' if facts.damaged != 1 else ' is'} damaged and left out "
        "here."
    )
    return f"{left_out} To find every damaged record, run: {reader.info.verify_command}"


def looked_at(reader: IndexedRecords, every: bool) -> tuple[np.ndarray, str]:
    """The numbers of the records to look at, and which they are, in words: all if `every`, or if
    they have labels and are few and small."""
    total = reader.info.num_records
    few = total <= ALL_RECORDS and reader.info.num_bytes <= ALL_BYTES
    ids = (
        np.arange(total)
        if every or (few and reader.manifest.labels)
        else sample(total, SAMPLED_RECORDS)
    )
    if len(ids) == total:
        return ids, f"all {total:,} records" if total != 1 else "the only record"
    return ids, f"a sample of {len(ids):,} of the {total:,} records"


def feature_rows(manifest: Manifest) -> Iterator[tuple[str, ...]]:
    """A row of FEATURES for each feature of a record."""
    for key, feature in sorted(manifest.schema.features.items()):
        shape = (
            "any length"
            if None in feature.shape
            else "x".join(map(str, feature.shape)) or "1 value"
        )
        holds = feature.content if feature.dtype == "bytes" else ""
        yield (
            key,
            feature.dtype,
            f"{shape}{', optional' * feature.optional}",
            holds,
            feature.unit or feature.doc,
        )


def split_rows(manifest: Manifest) -> Iterator[tuple[str | int, ...]]:
    """A row of SPLITS for each split."""
    for name, entry in sorted(manifest.splits.items()):
        fixups = ", ".join(
            f"{_fixup(kind)} {count:,}" for kind, count in sorted(entry.fixups.items())
        )
        yield (
            name,
            entry.num_records,
            format_bytes(entry.num_bytes),
            len(entry.shards),
            entry.rejected,
            fixups,
        )


def _fixup(kind: str) -> str:
    """A kind of repair in words: "PNG to JPEG", "transparency made white", "turned upright"."""
    form, to_jpeg, _ = kind.partition("_to_jpeg")
    return f"{form.upper()} to JPEG" if to_jpeg else FIXUPS.get(kind, kind.replace("_", " "))


def shard_sizes(entry: SplitEntry) -> list[tuple[str, int]]:
    """(range of sizes, number of shards): one range if all are about as large."""
    sizes = [shard.bytes for shard in entry.shards]
    low = min(sizes)
    high = max(sizes)
    if high <= ALIKE * low:
        return [(f"{format_bytes(low)} to {format_bytes(high)}", len(sizes))]
    counts, edges = np.histogram(sizes, SIZE_RANGES)
    names = [f"{format_bytes(a)} to {format_bytes(b)}" for a, b in itertools.pairwise(edges)]
    return list(zip(names, counts.tolist(), strict=True))


def _add(facts: Facts, manifest: Manifest, values: Mapping[str, Sequence[Any]]) -> None:
    packed = manifest.schema.name == PACKED_TEXT
    for key, feature in manifest.schema.features.items():
        items = values.get(key, ())
        if items and KINDS[type(items[0])] != feature.dtype:
            facts.misfits[key] += 1
            continue
        if None in feature.shape:
            facts.lengths[key].add([len(items)])
        if feature.dtype == "bytes":
            facts.sizes[key].add(list(map(len, items)))
            if feature.content == "image":
                _add_images(facts, key, items)
        elif not (packed and feature.shape) and not (
            manifest.labels and key == manifest.labels.key
        ):
            facts.numbers[key].add(items)
    if packed:
        numbers, tokens = np.unique(
            np.asarray(values.get("segment_ids", ()), np.int64), return_counts=True
        )
        facts.lengths[SEGMENTS].add(tokens[numbers > 0].tolist())  # 0 is padding


def _add_images(facts: Facts, key: str, items: Sequence[bytes]) -> None:
    for item in items:
        try:
            with Image.open(io.BytesIO(item)) as image:  # reads only the header
                facts.formats[f"{image.format} {image.mode}"] += 1
                facts.widths[key].add([image.width])
                facts.heights[key].add([image.height])
        except UNREADABLE:
            facts.formats["unreadable"] += 1
