"""Counts copies: records with the same raw content, within a split and across splits.

Only digests and places are shuffled, grouped by digest, so that no process holds those of all
records."""

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import NamedTuple

import numpy as np

from beam_jobs.converter import ConversionJob
from beam_jobs.split.ledger import Receipt, parse_receipt, receipts_of
from beam_jobs.split.plan import SplitPlan
from pipeline.errors import InfeedError
from pipeline.shards.copies import EXAMPLES, Copies
from pipeline.shards.example_decoding import decode_example
from pipeline.shards.frames import FRAME_BYTES, HEADER_BYTES
from pipeline.shards.manifest import find_manifest
from pipeline.sources.indexed_records import FILE_NAME_KEYS

_RECORDS_PER_GROUP = 1 << 21  # 245 MiB to count them, 860 if each shard has but two of them
_NAME_BYTES = 200
_CLASS_KEYS = ("image/class/text", "image/class/synset")
_Pair = tuple[str, str]  # two splits; or one, twice


class Contents(NamedTuple):
    """Records of one shard. file: the shard. receipt: the path of its receipt. digests: uint64 [n],
    see content_digest. rows: uint32 [n], numbers of the records in the shard."""

    split: str
    file: str
    receipt: str
    digests: np.ndarray
    rows: np.ndarray

    @staticmethod
    def of(receipt: Receipt, file: str) -> "Contents":
        """All records of a shard; none if an older infeed wrote it."""
        digests = receipt.content_digests()
        rows = np.arange(len(digests), dtype=np.uint32)
        return Contents(receipt.split, file, receipt.file, digests, rows)

    def by_group(self, records: int) -> Iterator[tuple[int, "Contents"]]:
        """Yields (number of a group, its records) for each group that has any. records: their
        number in the conversion."""
        groups = self.digests % np.uint64(records // _RECORDS_PER_GROUP + 1)
        order = np.argsort(groups, kind="stable")  # not a mask per group: there may be hundreds
        for some in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
            if len(some):
                digests, rows = self.digests[some], self.rows[some]
                yield int(groups[some[0]]), self._replace(digests=digests, rows=rows)


def contents_before(job: ConversionJob) -> Iterator[Contents]:
    """Yields the contents of the splits in the output directory that the job does not write, except
    for shards whose receipts were removed or replaced."""
    manifest = find_manifest(job.output_dir, job.output)
    for split, entry in manifest.splits.items() if manifest else ():
        if split not in job.splits:
            receipts = receipts_of(SplitPlan(job, split, {}), len(entry.shards))
            for receipt, shard in zip(receipts, entry.shards, strict=True):
                if receipt and receipt.crc32c == shard.crc32c:
                    yield Contents.of(receipt, shard.file)


class _Place(NamedTuple):
    file: str
    receipt: str
    row: int

    def name(self, job: ConversionJob) -> str:
        """The file name of the record at this place; "" if it has none."""
        try:
            receipt = parse_receipt(job.output.read(job.path(self.receipt)))
            sizes = receipt.index_rows()[: self.row + 1, 0].tolist() if receipt else [0]
            begin = sum(sizes[:-1]) + FRAME_BYTES * self.row + HEADER_BYTES
            (payload,) = job.output.read_ranges([(job.path(self.file), begin, sizes[-1])])
            values = {} if job.converter.schema.opaque else decode_example(payload)
        except InfeedError:
            values = {}
        # records of others may hold anything under these keys, of any length
        texts = {
            key: value[0] for key, value in values.items() if value and isinstance(value[0], bytes)
        }
        names = [texts[key] for key in FILE_NAME_KEYS if key in texts][:1]
        folders = [texts[key] for key in _CLASS_KEYS if names and key in texts][-1:]
        return b"/".join([*folders, *names])[:_NAME_BYTES].decode(errors="backslashreplace")


@dataclass
class Counted:
    """Counts in one group, or in all.

    records: by split.
    copies: by pair of splits and one of the two: its records that the other has, too.
    examples: by pair of splits: (digest, place of a record, place of a copy), lowest digests."""

    records: Counter[str] = field(default_factory=Counter)
    copies: Counter[tuple[_Pair, str]] = field(default_factory=Counter)
    examples: dict[_Pair, Sequence[tuple[int, _Place, _Place]]] = field(default_factory=dict)

    def add(self, other: "Counted") -> None:
        """Adds another group."""
        self.records.update(other.records)
        self.copies.update(other.copies)
        for pair, more in other.examples.items():
            several = (*self.examples.get(pair, ()), *more)
            self.examples[pair] = heapq.nsmallest(EXAMPLES, several, key=itemgetter(0))

    def of(self, job: ConversionJob, prints: Mapping[str, str]) -> Copies:
        """The copies in one or two splits. prints: their fingerprints."""
        pair = min(prints), max(prints)
        named = [(one.name(job), other.name(job)) for _, one, other in self.examples.get(pair, ())]
        records = {split: self.copies[pair, split] for split in prints if named}
        return Copies(prints, records, [names for names in named if all(names)])


def counted(pieces: Iterable[Contents]) -> Counted:
    """Counts the copies in a group."""
    pieces = sorted(pieces, key=attrgetter("split", "file"))
    found = Counted()
    for piece in pieces:
        found.records[piece.split] += len(piece.digests)
    digests = np.concatenate([piece.digests for piece in pieces])
    in_order = np.sort(digests)
    values = np.unique(in_order[1:][np.diff(in_order) == 0])
    rows = np.flatnonzero(np.isin(digests, values))  # all others have no copy
    number = np.searchsorted(values, digests[rows])
    firsts = np.cumsum([0, *(len(piece.digests) for piece in pieces)])
    piece_of = np.searchsorted(firsts, rows, side="right") - 1
    split_of = np.array([piece.split for piece in pieces])[piece_of]

    def place(at: int) -> _Place:
        piece = pieces[piece_of[at]]
        row = piece.rows[rows[at] - firsts[piece_of[at]]]
        return _Place(piece.file, piece.receipt, int(row))

    for pair in itertools.combinations_with_replacement(found.records, 2):
        hits = {}
        for split, other in itertools.permutations(pair):
            there = np.bincount(number[split_of == other], minlength=len(values))
            hits[split] = np.flatnonzero((split_of == split) & (there[number] > (split == other)))
            found.copies[pair, split] = len(hits[split])
        first = hits[pair[0]]
        examples = []
        for at in first[np.unique(number[first], return_index=True)[1][:EXAMPLES]]:
            copies = np.flatnonzero((split_of == pair[1]) & (number == number[at]))
            examples.append((int(values[number[at]]), place(at), place(copies[copies != at][0])))
        found.examples[pair] = examples
    return found
