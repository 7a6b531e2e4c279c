"""Facts about a dataset, most of them from its manifest: rows of tables, which describe prints and
its page draws."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.errors import OptionError, StorageError
from pipeline.pages.shown_records import label_text
from pipeline.shards.manifest import Manifest, SplitEntry
from pipeline.shards.schema import Labels
from pipeline.sizes import format_bytes
from pipeline.tokenizers import PACKED_TEXT, TextInfo, read_text_info

FEATURES = ("feature", "dtype", "shape", "holds", "meaning")
SPLITS = ("split", "records", "size", "shards", "rejected", "changed")
TOTALS = (
    "split",
    "documents",
    "text bytes",
    "tokens",
    "bytes per token",
    "tokens per row",
    "rows filled",
)
FIXUPS = {"alpha_on_white": "transparency made white", "cmyk_to_rgb": "CMYK to RGB"}
SIZE_RANGES, ALIKE = 8, 1.02  # of shards; within 2 % they count as equally large


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


@dataclass(frozen=True)
class LabelCounts:
    """How many records have each label."""

    labels: Labels
    counts: Mapping[int, int]

    def rows(self, most: int) -> tuple[list[tuple[str, int]], str]:
        """(name, count) of the labels, also of classes that do not occur: all in order, or the most
        and the least frequent, which the text says."""
        labels = self.labels
        every = dict.fromkeys(range(labels.base, labels.base + labels.count), 0) | dict(self.counts)
        ranked = sorted(every, key=lambda label: -every[label])
        note = ""
        if len(ranked) > most:
            half = most // 2
            ranked = ranked[:half] + ranked[-half:]
            note = f"Only the {half} most frequent and the {half} least frequent labels are shown."
        else:
            ranked.sort()
        return [(label_text(labels, label), every[label]) for label in ranked], note

    @property
    def occurring(self) -> str:
        """How many of the classes occur, in a clause."""
        num_named = sum(self.labels.name_of(label) is not None for label in self.counts)
        return f"{num_named:,} of {self.labels.count:,} classes occur{'s' * (num_named == 1)}"

    @property
    def outside(self) -> str:
        """How many labels are no class, in a sentence; "" if there are none."""
        labels = self.labels
        outside = [count for label, count in self.counts.items() if labels.name_of(label) is None]
        if not outside:
            return ""
        have = "labels are" if sum(outside) != 1 else "label is"
        return f"{sum(outside):,} {have} outside {labels.base}..{labels.base + labels.count - 1}."


def find_text_info(manifest: Manifest) -> TextInfo | None:
    """How the text of the dataset became tokens; None if it contains no packed text. Raises
    OptionError."""
    return read_text_info(manifest.directory) if manifest.schema.name == PACKED_TEXT else None


def text_problem(manifest: Manifest) -> str:
    """What is wrong with text.json or tokenizer.json; "" if both are intact, or if there is no
    packed text."""
    try:
        if info := find_text_info(manifest):
            info.files()
    except (OptionError, StorageError) as e:
        return str(e)
    return ""


def text_totals(manifest: Manifest, info: TextInfo) -> Iterator[Sequence[str]]:
    """The values of TOTALS for each split. Rows filled: the share of places that are not
    padding."""
    for name, entry in sorted(manifest.splits.items()):
        documents, size, tokens, segments = (
            entry.totals.get(f"num_{what}", 0)
            for what in ("documents", "bytes", "tokens", "segments")
        )
        places = entry.num_records * info.sequence_length
        yield (
            name,
            f"{documents:,}",
            f"{size:,}",
            f"{tokens:,}",
            f"{size / tokens:.3f}" if tokens else "",
            f"{tokens / entry.num_records:.1f}" if entry.num_records else "",
            f"{(tokens + segments) / places:.2%}" if places else "",
        )
