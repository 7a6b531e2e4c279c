"""Facts about the records of a split, gathered in one pass: labels, numbers, lengths, and sizes of
images.

Memory does not grow with the records: of each feature a bounded number of values is kept."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from pipeline.commands.bounded_values import BoundedValues
from pipeline.console.console import tracked
from pipeline.errors import InfeedError
from pipeline.orders.shuffle import splitmix64
from pipeline.pages.shown_records import OF_FILES
from pipeline.raw.jpeg import UNREADABLE, open_image
from pipeline.shards.example_decoding import decode_example
from pipeline.shards.manifest import Manifest
from pipeline.sizes import MB
from pipeline.sources.indexed_records import FILE_NAME_KEYS, IndexedRecords
from pipeline.sources.records import intact, weighed
from pipeline.tokenizers import PACKED_TEXT

RECORDS_PER_READ = 256
SAMPLED_RECORDS = 200  # of a split, unless all are asked for: ~22 MB of ImageNet
# up to here all labels are counted, which takes at most about 10 seconds
ALL_RECORDS = 100_000
ALL_BYTES = 250 * MB
# of decoded values, by dtype of the schema
KINDS = {bytes: "bytes", int: "int64", float: "float32"}


class Measure(NamedTuple):
    """What is measured of records. kind: SIDES, NUMBERS, LENGTHS or BYTES. unit: "" of numbers."""

    kind: int
    title: str
    unit: str = ""


SIDES, NUMBERS, LENGTHS, BYTES = range(4)


@dataclass
class Facts:
    """Facts about records.

    records: how many were read.
    damaged: how many others could not be.
    labels: label -> count.
    formats: of images, such as "JPEG RGB" -> count.
    misfits: feature -> in how many records it has another dtype than in the schema.
    values: what was measured of each feature: widths and heights of images; numbers; lengths,
        which are the values per record, if they vary, or the tokens per segment of packed text; and
        the bytes of each image, text or other value."""

    records: int = 0
    damaged: int = 0
    labels: Counter[int] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    misfits: Counter[str] = field(default_factory=Counter)
    values: dict[Measure, BoundedValues] = field(default_factory=lambda: defaultdict(BoundedValues))


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


def looked_at(reader: IndexedRecords, every: bool) -> tuple[np.ndarray, str]:
    """The numbers of the records to look at, and which they are, in words: all if `every`, or if
    they have labels and are few and small."""
    total = reader.info.num_records
    few = total <= ALL_RECORDS and reader.info.num_bytes <= ALL_BYTES
    every = every or bool(few and reader.manifest.labels)
    ids = sample(total, total if every else SAMPLED_RECORDS)
    if len(ids) == total:
        return ids, f"all {total:,} records" if total != 1 else "the only record"
    return ids, f"a sample of {len(ids):,} of the {total:,} records"


def gathered(reader: IndexedRecords, ids: np.ndarray, *, only_labels: bool = False) -> Facts:
    """The facts of these records. Shows the progress on a terminal.

    only_labels: leaves out everything else, which takes longer. Raises StorageError."""
    manifest = reader.manifest
    facts = Facts()
    groups = np.split(ids, range(RECORDS_PER_READ, len(ids), RECORDS_PER_READ))
    batches = reader.read(weighed(reader, groups))
    for records in tracked(batches, "reading", len(groups)):
        for record in records:
            try:
                values = decode_example(intact(record)[0])
            except InfeedError:
                facts.damaged += 1
                continue
            facts.records += 1
            if manifest.labels:
                facts.labels.update(manifest.labels.of(values))
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


def _add(facts: Facts, manifest: Manifest, values: Mapping[str, Sequence[Any]]) -> None:
    packed = manifest.schema.name == PACKED_TEXT
    for key, feature in manifest.schema.features.items():
        items = values.get(key, ())
        if items and KINDS[type(items[0])] != feature.dtype:
            facts.misfits[key] += 1
            continue
        if None in feature.shape:
            facts.values[Measure(LENGTHS, f"lengths of {key}", "values")].add([len(items)])
        if feature.content == "image":
            _add_images(facts, key, items)
        if feature.dtype == "bytes" and key not in (*FILE_NAME_KEYS, *OF_FILES):
            facts.values[Measure(BYTES, f"sizes of {key}", "bytes")].add([*map(len, items)])
        is_label = manifest.labels and key == manifest.labels.key
        is_number = feature.dtype != "bytes" and not is_label and not (packed and feature.shape)
        if is_number and key not in OF_FILES:
            facts.values[Measure(NUMBERS, key)].add(items)
    if packed:
        numbers, tokens = np.unique(
            np.asarray(values.get("segment_ids", ()), np.int64), return_counts=True
        )
        lengths = tokens[numbers > 0].tolist()  # 0 is padding
        facts.values[Measure(LENGTHS, "lengths of segments", "tokens")].add(lengths)


def _add_images(facts: Facts, key: str, items: Sequence[bytes]) -> None:
    for item in items:
        try:
            with open_image(item) as image:  # reads only the header
                facts.formats[f"{image.format} {image.mode}"] += 1
                for what, pixels in zip(("widths", "heights"), image.size, strict=True):
                    facts.values[Measure(SIDES, f"{what} of {key}", "pixels")].add([pixels])
        except UNREADABLE:
            facts.formats["unreadable"] += 1
