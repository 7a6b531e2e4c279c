"""What a page shows of a split: facts, samples, the inputs that its conversion rejected, counted by
reason, and the conversion itself, with as many samples as fit on the page."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from html import escape

from pipeline.commands.dataset_facts import Facts, damage, gathered, looked_at, spread
from pipeline.commands.dataset_texts import row_text
from pipeline.commands.shown_records import ShownRecord, show_records
from pipeline.shards.manifest import Manifest
from pipeline.shards.naming import rejects_file, summary_file
from pipeline.sizes import MB
from pipeline.sources.indexed_records import IndexedRecords
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Storage, join
from pipeline.tokenizers import TextInfo

MOST_SAMPLE_BYTES = 3 * MB  # of a page
TAG_BYTES = 10  # <td></td>
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Reason:
    """Why inputs were rejected. text, key: of the first of them. several: whether others differ, in
    their numbers."""

    text: str
    key: str
    several: bool = False


@dataclass(frozen=True)
class Conversion:
    """What the summary of a split's conversion tells. started: Unix seconds. problem: why it tells
    nothing, or ""."""

    started: float | None = None
    seconds: float | None = None
    warnings: Sequence[str] = ()
    problem: str = ""


@dataclass(frozen=True)
class SplitFacts:
    """What the page shows of a split. whose: which records the facts are of, in words. rejects:
    (reason, number of inputs), the most frequent first. damage: a sentence about damaged records,
    or ""."""

    name: str
    facts: Facts = field(default_factory=Facts)
    whose: str = "no records"
    samples: Sequence[ShownRecord] = ()
    rejects: Sequence[tuple[Reason, int]] = ()
    conversion: Conversion = field(default_factory=Conversion)
    damage: str = ""


def split_facts(
    manifest: Manifest,
    split: str,
    text: TextInfo | None,
    *,
    samples: int,
    every: bool,
) -> SplitFacts:
    """Reads the facts and samples of a split. every: of all records, not of a sample. Raises
    StorageError."""
    storage = open_storage(manifest.directory)
    directory = manifest.directory
    facts_of_split = SplitFacts(
        split,
        rejects=read_rejects(storage, directory, split),
        conversion=read_conversion(storage, directory, split),
    )
    if not manifest.splits[split].num_records:
        return facts_of_split
    reader = IndexedRecords(manifest, split, storage)
    ids, whose = looked_at(reader, every)
    facts = Facts() if manifest.schema.opaque else gathered(reader, ids)
    text_of = None if text is None else partial(row_text, text)
    shown = show_records(reader, spread(reader.info.num_records, samples), text_of)
    return replace(
        facts_of_split, facts=facts, whose=whose, samples=shown, damage=damage(facts, reader)
    )


def read_conversion(storage: Storage, directory: str, split: str) -> Conversion:
    """The conversion in the split's summary; an empty one if the dataset has none, as an index of
    foreign files. StorageError."""
    path = join(directory, summary_file(split))
    if not storage.exists(path):
        return Conversion()
    try:
        summary = json.loads(storage.read(path))
        started = summary["started"]
        datetime.fromtimestamp(started, UTC)
        warnings = tuple(map(str, summary["warnings"]))
        return Conversion(float(started), float(summary["seconds"]), warnings)
    except (ValueError, TypeError, KeyError, OverflowError, OSError):  # the page can do without it
        return Conversion(problem=f"{path} is damaged")


def read_rejects(storage: Storage, directory: str, split: str) -> list[tuple[Reason, int]]:
    """Why inputs of a split were rejected, and how many; reasons that differ only in their numbers
    are one.

    Empty if the dataset has no list of them. Lines that are damaged count as such."""
    path = join(directory, rejects_file(split))
    if not storage.exists(path):
        return []
    counts = Counter[str]()
    reasons = dict[str, Reason]()
    for line in storage.read(path).splitlines():
        try:
            rejected = json.loads(line)
            text = rejected["error"]
            key = rejected["key"]
            kind = _NUMBER.sub("N", text)
        except (ValueError, KeyError, TypeError):
            kind, text, key = "", "(a damaged line)", ""
        counts[kind] += 1
        first = reasons.setdefault(kind, Reason(text, key))
        if text != first.text and not first.several:
            reasons[kind] = replace(first, several=True)
    return [(reasons[kind], count) for kind, count in counts.most_common()]


def fitting(splits: Sequence[SplitFacts]) -> list[SplitFacts]:
    """The same with fewer samples of each, spread over the split, if all would make the page too
    large."""
    total = sum(_size(record) for split in splits for record in split.samples)
    if total <= MOST_SAMPLE_BYTES:
        return list(splits)
    smaller = []
    for split in splits:
        places = spread(len(split.samples), max(1, len(split.samples) * MOST_SAMPLE_BYTES // total))
        smaller.append(replace(split, samples=[split.samples[place] for place in places]))
    return smaller


def _size(record: ShownRecord) -> int:
    """About the bytes that it takes on a page, where "<" is "&lt;"."""
    texts = [*record.texts, *record.values.values(), record.problem, record.name, record.label]
    pictures = sum(len(picture.source) for picture in record.pictures)
    return pictures + sum(len(escape(text)) + TAG_BYTES for text in texts if text)
