"""What a page shows of a split: facts, samples, the inputs that its conversion rejected, counted by
reason, and the conversion itself, with as many samples as fit on the page."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple

from pipeline.commands.record_facts import Facts, damage, gathered, looked_at, spread
from pipeline.pages.shown_records import ShownRecord, show_records
from pipeline.shards.manifest import Manifest, SplitEntry
from pipeline.shards.naming import rejects_file, summary_file
from pipeline.sizes import MB, counted, format_bytes, format_seconds
from pipeline.sources.indexed_records import IndexedRecords
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Storage, join
from pipeline.tokenizers import TextInfo

MOST_SAMPLE_BYTES = 3 * MB  # of a page
TAG_BYTES = 10  # <td></td>
_NUMBER = re.compile(r"\d+")


class Reason(NamedTuple):
    """Why inputs were rejected. inputs: their number. text, example: the reason and the key of
    the first of them. several: whether others differ, in their numbers."""

    inputs: int
    text: str
    example: str
    several: bool = False


@dataclass(frozen=True)
class SplitFacts:
    """What the page shows of a split.

    whose: which records the facts are of, in words.
    damage: a sentence about damaged records, or "".
    rejects: the most frequent reason first.
    origin: (what, value) of the conversion."""

    name: str
    facts: Facts = field(default_factory=Facts)
    whose: str = "no records"
    samples: Sequence[ShownRecord] = ()
    damage: str = ""
    rejects: Sequence[Reason] = ()
    origin: Sequence[tuple[str, str]] = ()


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
    entry = manifest.splits[split]
    rejects = read_rejects(storage, manifest.directory, split)
    origin = [*read_origin(storage, manifest.directory, split, entry)]
    if not entry.num_records:
        return SplitFacts(split, rejects=rejects, origin=origin)
    reader = IndexedRecords(manifest, split, storage)
    ids, whose = looked_at(reader, every)
    facts = Facts() if manifest.schema.opaque else gathered(reader, ids)
    shown = show_records(reader, spread(entry.num_records, samples), text and text.text_of)
    return SplitFacts(split, facts, whose, shown, damage(facts, reader), rejects, origin)


def read_origin(
    storage: Storage, directory: str, split: str, entry: SplitEntry
) -> Iterator[tuple[str, str]]:
    """(what, value) of a split's conversion, the time and warnings from its summary, which a
    dataset without a conversion lacks. Raises StorageError."""
    raw = []
    if inputs := entry.sources.get("inputs"):
        raw.append(counted(inputs, "input"))
    if size := entry.sources.get("bytes"):  # 0 for folders
        raw.append(format_bytes(size))
    if raw:
        yield f"{split}: raw data", ", ".join(raw)
    path = join(directory, summary_file(split))
    warnings = ()
    if storage.exists(path):
        try:
            summary = json.loads(storage.read(path))
            when = datetime.fromtimestamp(summary["started"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            converted = f"{when}, in {format_seconds(float(summary['seconds']))}"
            warnings = tuple(map(str, summary["warnings"]))
        # the page can do without it
        except (ValueError, TypeError, KeyError, OverflowError, OSError):
            converted = f"{path} is damaged"
        yield f"{split}: converted", converted
    yield f"{split}: fingerprint", entry.fingerprint
    yield f"{split}: plan, seed", f"{entry.plan_digest}, {entry.seed}"
    for warning in warnings:
        yield f"{split}: warning", warning


def read_rejects(storage: Storage, directory: str, split: str) -> list[Reason]:
    """Why inputs of a split were rejected; reasons that differ only in their numbers are one.

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
        first = reasons.setdefault(kind, Reason(0, text, key))
        if text != first.text:
            reasons[kind] = first._replace(several=True)
    return [reasons[kind]._replace(inputs=count) for kind, count in counts.most_common()]


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
