"""The page of a dataset: what it is, its splits, labels, samples and distributions, and how to read it."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import numpy as np

from pipeline.describing import reading
from pipeline.describing.facts import Facts
from pipeline.describing.records import ShownRecord, label_text
from pipeline.describing.rejects import Rejects
from pipeline.pages.charts import histogram
from pipeline.pages.page import Bars, Block, Code, Note, Page, Pictures, Section, Table
from pipeline.shards.manifest import Manifest
from pipeline.sizes import format_bytes
from pipeline.tokenizers import TextInfo
from pipeline.tools.packed_text import TOTALS, text_totals

__all__ = ["SplitFacts", "dataset_page", "label_rows"]

OF_PACKED_TEXT = ("tokens", "positions", "segment_ids")  # their numbers mean nothing by themselves
MOST_CHARTS = 24  # of a split
MOST_LABELS = 60


@dataclass(frozen=True)
class SplitFacts:
    """What the page shows of a split. whose: which records the facts are of, in words. shards: name -> count, by size.
    summary: of its conversion, {} if unknown."""

    name: str
    facts: Facts
    whose: str
    samples: Sequence[ShownRecord]
    shards: Sequence[tuple[str, int]]
    rejects: Rejects | None
    summary: Mapping[str, object]


def dataset_page(manifest: Manifest, splits: Sequence[SplitFacts], text: TextInfo | None, made_by: str) -> Page:
    """The page, with a section for each kind of fact. text: how its text became tokens, if it is packed text."""
    records = sum(entry.num_records for entry in manifest.splits.values())
    size = sum(entry.num_bytes for entry in manifest.splits.values())
    names = ", ".join(manifest.splits)
    lead = (
        f"{records:,} records in {len(manifest.splits)} splits ({names}), {format_bytes(size)}, in {manifest.directory}"
    )
    made = [
        ("Splits", [_splits(manifest), *_shards(splits)]),
        ("Features", [_features(manifest)]),
        ("Text", _text(manifest, text)),
        ("Samples", [block for split in splits for block in _samples(split)]),
        ("Labels", [block for split in splits for block in _labels(manifest, split)]),
        ("Distributions", [block for split in splits for block in _distributions(manifest, split)]),
        ("Rejected inputs", [block for split in splits for block in _rejects(manifest, split)]),
        ("How it was made", [_origin(manifest, splits)]),
        ("How to read it", [Code(reading.commands(manifest), "In a shell"), Code(_python(manifest), "In Python")]),
    ]
    sections = [Section(title, blocks, narrow=title == "Distributions") for title, blocks in made]
    return Page(manifest.name, lead, sections, made_by)


def label_rows(counts: Mapping[int, int], most: int, name: Callable[[int], str]) -> tuple[list[tuple[str, int]], str]:
    """(name, count) of the labels: all in order, or the most and the least frequent, which the text says."""
    ranked, told = sorted(counts.items(), key=lambda pair: -pair[1]), ""
    if len(ranked) > most:
        half = most // 2
        ranked, told = ranked[:half] + ranked[-half:], f"the {half} most and the {half} least frequent"
    else:
        ranked.sort()
    return [(name(label), count) for label, count in ranked], told


def _splits(manifest: Manifest) -> Table:
    rows = [
        (
            name,
            entry.num_records,
            format_bytes(entry.num_bytes),
            len(entry.shards),
            entry.rejected,
            ", ".join(f"{kind} {count:,}" for kind, count in sorted(entry.fixups.items())),
        )
        for name, entry in sorted(manifest.splits.items())
    ]
    return Table(("split", "records", "bytes", "shards", "rejected", "fix-ups"), rows)


def _shards(splits: Sequence[SplitFacts]) -> Iterator[Block]:
    for split in splits:
        if len(split.shards) == 1:
            ((size, count),) = split.shards
            yield Note(f"{split.name}: {count:,} shard{'s' * (count > 1)} of {size}.")
        elif split.shards:
            yield Bars(split.shards, "shards", f"{split.name}: shards by size")


def _features(manifest: Manifest) -> Block:
    if manifest.schema.opaque:
        return Note("Records are opaque: each is one value of any bytes.")
    rows = []
    for key, feature in sorted(manifest.schema.features.items()):
        shape = "any number" if None in feature.shape else "x".join(map(str, feature.shape)) or "one"
        kind = feature.content if feature.dtype == "bytes" else ""
        rows.append((key, feature.dtype, shape, kind, "optional" if feature.optional else "", feature.doc))
    return Table(("feature", "dtype", "shape", "holds", "", "meaning"), rows)


def _text(manifest: Manifest, text: TextInfo | None) -> list[Block]:
    if text is None:
        return []
    told = f"Tokenizer {text.tokenizer.name}, rows of {text.sequence_length:,} tokens, packing {text.packing}."
    return [Note(told), Table(TOTALS, list(text_totals(manifest, text)))]


def _samples(split: SplitFacts) -> Iterator[Block]:
    pictured = [(record.pictures[0], _lines(record)) for record in split.samples if record.pictures]
    more = [(picture, [f"record {record.number:,}"]) for record in split.samples for picture in record.pictures[1:]]
    if pictured:
        yield Pictures([*pictured, *more], split.name)
    others = [record for record in split.samples if not record.pictures]
    if others:
        rows = [(record.number, record.label, record.name, " · ".join(_contents(record))) for record in others]
        yield _without_empty_columns(("record", "label", "file", "content"), rows, split.name)


def _lines(record: ShownRecord) -> list[str]:
    return [record.label or f"record {record.number:,}", record.name, *record.texts[:3]]


def _contents(record: ShownRecord) -> Sequence[str]:
    return [record.problem] if record.problem else [*record.texts, *record.numbers]


def _without_empty_columns(columns: Sequence[str], rows: Sequence[Sequence[str | int]], title: str) -> Table:
    kept = [at for at in range(len(columns)) if any(row[at] != "" for row in rows)]
    return Table([columns[at] for at in kept], [[row[at] for at in kept] for row in rows], title)


def _labels(manifest: Manifest, split: SplitFacts) -> Iterator[Block]:
    if manifest.labels and split.facts.labels:
        rows, told = label_rows(split.facts.labels, MOST_LABELS, partial(label_text, manifest.labels))
        note = f"Of {split.whose}. {len(split.facts.labels):,} of {manifest.labels.count:,} classes occur."
        yield Bars(rows, "records", f"{split.name}: labels", f"{note} Shown are {told}." if told else note)


def _distributions(manifest: Manifest, split: SplitFacts) -> Iterator[Block]:
    measured = list(_measured(manifest, split.facts))
    same = [(title, float(values[0])) for title, _, values in measured if values.min() == values.max()]
    charts = [each for each in measured if each[2].min() < each[2].max() or not np.isfinite(each[2]).all()]
    if measured or split.facts.formats:
        yield Note(f"{split.name}: of {split.whose}.")
    for title, unit, values in charts[:MOST_CHARTS]:
        yield histogram(f"{split.name}: {title}", values, unit, "count")
    if len(charts) > MOST_CHARTS:
        yield Note(f"{len(charts) - MOST_CHARTS} more features are not shown.")
    if same:
        yield Table(("feature", "value"), same, f"{split.name}: the same in all")
    if split.facts.formats:
        yield Bars(split.facts.formats.most_common(), "images", f"{split.name}: formats of images")


def _measured(manifest: Manifest, facts: Facts) -> Iterator[tuple[str, str, np.ndarray]]:
    """(what, its unit, values) of everything that was measured, without what has no values."""
    for key, heights in facts.heights.items():
        yield f"widths of {key}", "pixels", facts.widths[key].kept
        yield f"heights of {key}", "pixels", heights.kept
    for key, lengths in facts.lengths.items():
        yield f"lengths of {key}", "bytes" if manifest.schema.features[key].dtype == "bytes" else "values", lengths.kept
    for key, numbers in facts.numbers.items():
        if key not in OF_PACKED_TEXT and len(numbers.kept):
            yield key, "value", numbers.kept


def _rejects(manifest: Manifest, split: SplitFacts) -> Iterator[Block]:
    rejected = manifest.splits[split.name].rejected
    if not rejected and not (split.rejects and split.rejects.counts):
        return
    if split.rejects is None or not split.rejects.counts:
        yield Note(f"{split.name}: {rejected:,} inputs were rejected; the list of reasons is not in this directory.")
        return
    rows = [(count, reason, split.rejects.example[reason]) for reason, count in split.rejects.counts[:30]]
    yield Table(("inputs", "reason", "for example"), rows, split.name)


def _origin(manifest: Manifest, splits: Sequence[SplitFacts]) -> Table:
    rows: list[tuple[str, str]] = [
        ("written by", manifest.writer or "an unknown program"),
        ("schema", manifest.schema.name),
    ]
    for split in splits:
        entry, summary = manifest.splits[split.name], split.summary
        rows.append((f"{split.name}: fingerprint", entry.fingerprint))
        rows.append((f"{split.name}: plan, seed", f"{entry.plan_digest}, {entry.seed}"))
        started, seconds = summary.get("started"), summary.get("seconds")
        if isinstance(started, float | int) and isinstance(seconds, float | int):
            when = datetime.fromtimestamp(started, UTC).isoformat(" ", "seconds").replace("+00:00", " UTC")
            rows.append((f"{split.name}: converted", f"{when}, in {seconds:,.0f} s"))
        if raw := summary.get("raw"):
            rows.append((f"{split.name}: raw data", json.dumps(raw)))
        warnings = summary.get("warnings")
        rows += [
            (f"{split.name}: warning", str(warning)) for warning in (warnings if isinstance(warnings, list) else [])
        ]
    return Table(("what", "value"), rows)


def _python(manifest: Manifest) -> str:
    names = [name for name, entry in sorted(manifest.splits.items()) if entry.num_records]
    return reading.python(manifest, "train" if "train" in names or not names else names[0])
