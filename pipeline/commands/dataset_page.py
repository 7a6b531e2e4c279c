"""The page of a dataset: what it is, its splits, labels, samples and distributions, and how to read
it."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePosixPath

import numpy as np

from pipeline.commands import dataset_texts as reading
from pipeline.commands.dataset_facts import (
    FEATURES,
    SEGMENTS,
    SPLITS,
    Facts,
    feature_rows,
    shard_sizes,
    split_rows,
)
from pipeline.commands.dataset_splits import Conversion, SplitFacts, fitting
from pipeline.commands.dataset_texts import (
    TOTALS,
    Values,
    label_rows,
    occurring,
    outside,
    text_totals,
)
from pipeline.commands.shown_records import OF_FILES, ShownRecord
from pipeline.pages.figures import histogram
from pipeline.pages.page import Bars, Block, Code, Figures, Note, Page, Pictures, Section, Table
from pipeline.shards.manifest import Manifest, SplitEntry
from pipeline.shards.naming import rejects_file
from pipeline.sizes import counted, format_bytes, format_seconds
from pipeline.sources.indexed_records import FILE_NAME_KEYS
from pipeline.tokenizers import TextInfo

MOST_CHARTS = 60  # of a page: 0.3 MB
MOST_LABELS = 60
MOST_COLUMNS = 60  # of a table of samples
MOST_REASONS = 30
PER_CLASS = "Records of each class"
MOST_LINES = 3  # texts, and values, below a picture
ALIKE = (
    "Reasons that differ only in their numbers are counted together; the text is that of the "
    "example."
)
OPAQUE = Note("Records are opaque: infeed does not parse their bytes.")
NO_RECIPE = (
    "None of infeed's recipes trains on these records unchanged. docs/recipes.md shows how to "
    "write one."
)


def dataset_page(
    manifest: Manifest, splits: Sequence[SplitFacts], text: TextInfo | None, made_by: str
) -> Page:
    """The page: what people look for first is open, the rest is folded. text: how its text became
    tokens, if it is packed text."""
    shown = fitting(splits)
    charts = max(1, MOST_CHARTS // max(1, len(splits)))
    main = max(
        shown,
        key=lambda split: (split.name == "train", manifest.splits[split.name].num_records),
        default=None,
    )
    warnings = [
        Note(f"{split.name}: {split.damage}", warning=True) for split in splits if split.damage
    ]
    splits_table = Table(SPLITS, list(split_rows(manifest))).without_empty_columns()
    features = Table(FEATURES, list(feature_rows(manifest)))
    origin = list(of_dataset(manifest))
    for split in splits:
        origin += of_split(split.name, manifest.splits[split.name], split.conversion)
    blocks_of_text = []
    if text:
        note = (
            f"Tokenizer {text.tokenizer.name}, rows of {text.sequence_length:,} tokens, packing "
            f"{text.packing}."
        )
        blocks_of_text = [Note(note), Table(TOTALS, list(text_totals(manifest, text)))]
    total = sum(len(split.samples) for split in splits)
    number = sum(len(split.samples) for split in shown)
    fewer = f"{number:,} of {total:,} samples are shown, which is about as many as fit on a page."
    sections = [Section("", [_figures(manifest, main), *warnings])]
    if main:
        notes = [Note(fewer)] if number < total else []
        sections += [
            Section(f"Samples of {main.name}", [*notes, *_samples(main, "")]),
            Section(f"{PER_CLASS} in {main.name}", [*_labels(manifest, main, "")]),
        ]
    folded = [
        *(
            (
                f"Samples and labels of {split.name}",
                [*_samples(split, "Samples"), *_labels(manifest, split, PER_CLASS)],
            )
            for split in shown
            if split is not main
        ),
        ("Splits and shards", [splits_table, *_shards(manifest)]),
        ("Features", [OPAQUE if manifest.schema.opaque else features.without_empty_columns()]),
        ("Text", blocks_of_text),
        ("Distributions", [block for split in splits for block in _distributions(split, charts)]),
        ("Rejected inputs", [block for split in splits for block in _rejects(manifest, split)]),
        ("How it was made", [Table(("what", "value"), origin)]),
        ("How to read it", list(_reading(manifest, splits))),
    ]
    sections += [Section(title, blocks, folded=True) for title, blocks in folded]
    title = PurePosixPath(manifest.directory).name or manifest.name
    return Page(title, f"{manifest.name}, in {manifest.directory}", sections, made_by)


def _figures(manifest: Manifest, main: SplitFacts | None) -> Figures:
    """How many records, how large, and how many classes, or how many features."""
    entries = manifest.splits
    counts = (
        (each.num_records, each.num_bytes, len(each.shards), each.rejected)
        for each in entries.values()
    )
    records, num_bytes, shards, rejected = map(sum, zip(*counts, strict=True))
    of_splits = ", ".join(
        f"{name} {entry.num_records:,}" for name, entry in sorted(entries.items())
    )
    left_out = f"{counted(rejected, 'input')} rejected" if rejected else ""
    third = (f"{len(manifest.schema.features):,}", "features of a record", "")
    if labels := manifest.labels:
        remark = ""
        if main and main.facts.records == entries[main.name].num_records:
            of_classes = [
                main.facts.labels[label] for label in range(labels.base, labels.base + labels.count)
            ]
            low = min(of_classes)
            high = max(of_classes)
            remark = f"{low:,}{f' to {high:,}' if high > low else ''} records each in {main.name}"
        third = (f"{labels.count:,}", "classes", remark)
    size = (format_bytes(num_bytes), f"in {counted(shards, 'shard')}", left_out)
    return Figures([(f"{records:,}", "records", of_splits), size, third])


def _shards(manifest: Manifest) -> Iterator[Block]:
    for name, entry in sorted(manifest.splits.items()):
        ranges = shard_sizes(entry)
        if len(ranges) > 1:
            yield Bars(ranges, title=f"{name}: shards by size")
        elif entry.num_records:
            ((_, count),) = ranges
            about = "about " * (count > 1)
            yield Note(
                f"{name}: {counted(count, 'shard')} of "
                f"{about}{format_bytes(entry.num_bytes / count)}."
            )


def _samples(split: SplitFacts, title: str) -> Iterator[Block]:
    pictured = [record for record in split.samples if record.pictures]
    if pictured:
        features = list(dict.fromkeys(key for record in pictured for key in record.pictured))
        note = (
            f"Pictures of each record, from top to bottom: {', '.join(features)}."
            if len(features) > 1
            else ""
        )
        yield Pictures(
            [(record.pictures, _lines(record)) for record in pictured], title=title, note=note
        )
    others = [record for record in split.samples if not record.pictures]
    if others:
        yield _records(others, title)


def _records(records: Sequence[ShownRecord], title: str) -> Table:
    """A row for each record, with a column for each feature that has values."""
    features = list(dict.fromkeys(key for record in records for key in record.values))
    shown = features[:MOST_COLUMNS]
    more = len(features) - MOST_COLUMNS
    rows = []
    for record in records:
        text = record.problem or " · ".join(record.texts)
        values = [record.values.get(key, "") for key in shown]
        rows.append((record.number, record.label, record.name, text, *values))
    note = f"{_more(more, 'feature')} not shown." if more > 0 else ""
    return Table(
        ("record", "label", "file", "text", *shown), rows, title=title, note=note
    ).without_empty_columns()


def _lines(record: ShownRecord) -> list[str]:
    """The lines below the pictures of a record."""
    values = [f"{key}: {value}" for key, value in record.values.items()]
    head = [record.label, record.name, f"record {record.number:,}"]
    return [*filter(None, head), *_first(record.texts, "text"), *_first(values, "feature")]


def _first(lines: Sequence[str], what: str) -> list[str]:
    if len(lines) <= MOST_LINES:
        return [*lines]
    return [*lines[:MOST_LINES], f"and {counted(len(lines) - MOST_LINES, f'more {what}')}"]


def _more(count: int, what: str) -> str:
    return f"{count:,} more {what}{'s are' if count != 1 else ' is'}"


def _labels(manifest: Manifest, split: SplitFacts, title: str) -> Iterator[Block]:
    if manifest.labels and split.facts.labels:
        rows, note_of_rows = label_rows(manifest.labels, split.facts.labels, MOST_LABELS)
        occurs = occurring(manifest.labels, split.facts.labels)
        note = f"Counted in {split.whose}. {occurs}. {note_of_rows}".strip()
        yield Bars(rows, title=title, note=note)
        if warning := outside(manifest.labels, split.facts.labels):
            yield Note(f"{split.name}: {warning}", warning=True)


def _distributions(split: SplitFacts, most: int) -> Iterator[Block]:
    facts = split.facts
    same = []
    charts = []
    for title, unit, values in _measured(facts):
        if values.low != values.high or values.bad:
            charts.append((title, unit, values))
        elif values.count:
            same.append((title, values.low))
    if same or charts or facts.formats:
        yield Note(f"Counted in {split.whose}.", title=split.name)
    for key, count in facts.misfits.items():
        have = f"{count:,} record{'s have' if count != 1 else ' has'}"
        yield Note(f"{split.name}: {have} {key!r} in another dtype than the schema.", warning=True)
    for title, unit, values in charts[:most]:
        yield _histogram(f"{split.name}: {title}", unit, values)
    if len(charts) > most:
        yield Note(f"{_more(len(charts) - most, 'feature')} not shown.")
    if same:
        yield Table(("feature", "value"), same, title=f"{split.name}: same value in every record")
    if facts.formats:
        yield Bars(facts.formats.most_common(), title=f"{split.name}: images by format")


def _histogram(title: str, unit: str, values: Values) -> Block:
    if values.low is None:
        return Note(f"{title}: none of {values.count:,} values is finite.")
    notes = []
    if not values.complete:
        notes.append(
            f"A random sample of {values.count:,} values, plus the smallest and the largest."
        )
    if bad := values.bad:
        notes.append(f"{bad:,} value{'s are' if bad != 1 else ' is'} not finite and not shown.")
    return histogram(title, values.kept, unit, note=" ".join(notes))


def _measured(facts: Facts) -> Iterator[tuple[str, str, Values]]:
    """(what, its unit, values) of everything that was measured."""
    for key, heights in facts.heights.items():
        yield f"widths of {key}", "pixels", facts.widths[key]
        yield f"heights of {key}", "pixels", heights
    for key, numbers in facts.numbers.items():
        if key not in OF_FILES:
            yield key, "", numbers
    for key, lengths in facts.lengths.items():
        yield f"lengths of {key}", "tokens" if key == SEGMENTS else "values", lengths
    for key, sizes in facts.sizes.items():
        if key not in (*FILE_NAME_KEYS, *OF_FILES):
            yield f"sizes of {key}", "bytes", sizes


def _rejects(manifest: Manifest, split: SplitFacts) -> Iterator[Block]:
    rejected = manifest.splits[split.name].rejected
    if not split.rejects:
        if rejected:
            path = rejects_file(split.name)
            inputs = f"{rejected:,} input{'s were' if rejected != 1 else ' was'}"
            yield Note(
                f"{split.name}: {inputs} rejected; the reasons are unknown because {path} is "
                "missing."
            )
        return
    shown = split.rejects[:MOST_REASONS]
    more = len(split.rejects) - MOST_REASONS
    notes = [ALIKE] if any(reason.several for reason, _ in shown) else []
    notes += [f"{_more(more, 'reason')} not shown."] if more > 0 else []
    rows = [(count, reason.text, reason.key) for reason, count in shown]
    yield Table(("inputs", "reason", "for example"), rows, title=split.name, note=" ".join(notes))


def of_dataset(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """(what, value) of the dataset."""
    note = ": an index of existing TFRecord files" if manifest.is_index else ""
    yield "written by", (manifest.writer or "an unknown program") + note
    yield "schema", manifest.schema.name
    if labels := manifest.labels:
        yield "labels", f"{labels.count:,} classes in {labels.key}, numbered from {labels.base}"


def of_split(name: str, entry: SplitEntry, conversion: Conversion) -> Iterator[tuple[str, str]]:
    """(what, value) of a split."""
    if raw := _raw(entry.sources):
        yield f"{name}: raw data", raw
    if conversion.started is not None and conversion.seconds is not None:
        when = datetime.fromtimestamp(conversion.started, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        yield f"{name}: converted", f"{when}, in {format_seconds(conversion.seconds)}"
    if conversion.problem:
        yield f"{name}: converted", conversion.problem
    yield f"{name}: fingerprint", entry.fingerprint
    yield f"{name}: plan, seed", f"{entry.plan_digest}, {entry.seed}"
    for warning in conversion.warnings:
        yield f"{name}: warning", warning


def _raw(sources: Mapping[str, int]) -> str:
    facts = []
    if inputs := sources.get("inputs"):
        facts.append(counted(inputs, "input"))
    if size := sources.get("bytes"):  # 0 for folders
        facts.append(format_bytes(size))
    return ", ".join(facts)


def _reading(manifest: Manifest, splits: Sequence[SplitFacts]) -> Iterator[Block]:
    sides = [
        values.kept
        for split in splits
        for values in (*split.facts.widths.values(), *split.facts.heights.values())
    ]
    side = int(np.median(np.concatenate(sides))) if sides else None
    yield Code(reading.commands(manifest, side), title="In a shell")
    if reading.recipe_of(manifest) is None:
        yield Note(NO_RECIPE)
    yield Code(reading.python(manifest, side), title="In Python")
