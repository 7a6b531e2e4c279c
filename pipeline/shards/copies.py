"""Copies: records whose raw content is equal, in one split or in two.

A conversion counts them by a digest of 8 bytes per record, which receipts keep, so that a split
converted weeks later is compared with those that exist. Of a billion different records, 0.03 pairs
have equal digests."""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from pipeline.errors import ManifestError, printable
from pipeline.shards.frames import crc32c
from pipeline.shards.manifest import Manifest, SplitEntry
from pipeline.shards.naming import COPIES_FILE
from pipeline.shards.typed_json import Count, JsonFile, read_sealed, sealed
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Storage, join

EXAMPLES = 3  # shown of each pair of splits
_MEND = "Remove it, or run the conversion of its splits again, which keeps the finished shards."


@dataclass(frozen=True)
class Copies:
    """What two splits have in common; or one split more than once.

    splits: the fingerprint of each, by name. records: how many of each are in the other, too, by
    name. examples: names of records of the first split, and of a copy of each, where they have
    names."""

    splits: Mapping[str, str]
    records: Mapping[str, Count] = field(default_factory=dict)
    examples: Sequence[tuple[str, str]] = ()

    def in_words(self, splits: Mapping[str, SplitEntry]) -> str:
        """How many records are copies, with examples."""
        counts = {
            split: f"{records:,} of {splits[split].num_records:,} {split} records"
            for split, records in self.records.items()
        }
        (first, *others), (count, *more) = counts, counts.values()
        where = (
            f"are also in {others[0]}, and {more[0]} in {first}" if more else "occur more than once"
        )
        pairs = "; ".join(f"{printable(one)} and {printable(two)}" for one, two in self.examples)
        return f"{count} {where}{pairs and f', such as {pairs}'}."


@dataclass(frozen=True)
class _File:
    copies: Sequence[Copies]


def content_digest(content: bytes) -> int:
    """64 bits: the crc32c and the crc32 of a record's raw content."""
    return crc32c(content) << 32 | zlib.crc32(content)


def content_digests(payloads: Sequence[bytes], crcs: np.ndarray) -> np.ndarray:
    """uint64 [n]: the digest of each payload. crcs: their crc32c."""
    others = np.fromiter(map(zlib.crc32, payloads), np.uint64, len(payloads))
    return crcs.astype(np.uint64) << np.uint64(32) | others


def known_copies(manifest: Manifest) -> list[Copies]:
    """Those of each split that was counted, and of each two. Raises ManifestError for a damaged
    file."""
    prints = {name: entry.fingerprint for name, entry in manifest.splits.items()}
    known = _read(open_storage(manifest.directory), manifest.directory)
    return [
        each
        for each in known
        if each.splits.items() <= prints.items() and each.records.keys() <= each.splits.keys()
    ]


def copies_elsewhere(manifest: Manifest, split: str) -> dict[str, int] | None:
    """How many records of a split are also in each other split, by split; None if not known. Raises
    ManifestError."""
    known = [copies for copies in known_copies(manifest) if split in copies.splits]
    others = {name: each.records.get(split, 0) for each in known for name in each.splits}
    return {name: count for name, count in others.items() if name != split} if known else None


def in_others(copies: Mapping[str, int] | None) -> list[str]:
    """A note on each other split that has some of a split's records."""
    counts = (copies or {}).items()
    return [f"{count:,} of them also in {split}" for split, count in counts if count]


def found_copies(manifest: Manifest) -> list[str]:
    """A sentence on each split, and each two, that have copies. Raises ManifestError."""
    return [each.in_words(manifest.splits) for each in known_copies(manifest) if each.records]


def counted_copies(manifest: Manifest) -> str:
    """A sentence on which splits were counted. Raises ManifestError."""
    known = {split for copies in known_copies(manifest) for split in copies.splits}
    if uncounted := ", ".join(sorted(manifest.splits.keys() - known)):
        return f"Not known: whether records of {uncounted} are copies of others."
    return "Copies were counted among the records of all splits." if manifest.splits else ""


def update_copies(storage: Storage, directory: str, split: str, copies: Sequence[Copies]) -> None:
    """Replaces those of a split, in it and in others."""

    def changed(_: bytes | None) -> bytes:
        try:
            before = _read(storage, directory)
        except ManifestError:
            before = ()
        others = (each for each in before if split not in each.splits)
        every = sorted((*others, *copies), key=lambda each: (len(each.splits), *each.splits))
        return json.dumps(sealed(asdict(_File(every))), indent=1).encode()

    storage.update(join(directory, COPIES_FILE), changed)


def _read(storage: Storage, directory: str) -> Sequence[Copies]:
    path = join(directory, COPIES_FILE)
    if not storage.exists(path):
        return ()
    return read_sealed(JsonFile(path, ManifestError, _MEND), storage.read(path), _File).copies
