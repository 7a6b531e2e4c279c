"""Builds the index of foreign TFRecord files by reading every byte of them once; pipeline.commands.index publishes it.

Memory: a few MB and a record per thread, and 8 bytes per record, 32 while the index is encoded."""

from array import array
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b

import google_crc32c
import numpy as np

from pipeline.commands.record_checks import payload_problem
from pipeline.errors import StorageError
from pipeline.shards.frames import MAX_INDEXED_BYTES, Frame, read_frames
from pipeline.shards.keys import add_digests, key_digest
from pipeline.shards.manifest import ShardEntry, SplitEntry
from pipeline.shards.naming import record_key
from pipeline.shards.record import crc32c
from pipeline.shards.schema import Schema
from pipeline.shards.split_index import encode_index
from pipeline.sources.merged_schemas import SchemaGuess, merged_schema
from pipeline.storage.storage import Stat, Storage, files_at_once, join, pieces_of

PIECE_BYTES = 4 * 1024**2


@dataclass
class IndexedFile:
    """One file, read to its end. problems: what is damaged, and where."""

    name: str
    bytes: int
    crc32c: int = 0
    rows: "array[int]" = field(default_factory=lambda: array("I"))  # of the index, concatenated
    key_digest: int = 0
    schema: Schema | None = None  # of all its records; None without records
    problems: list[str] = field(default_factory=list)

    @property
    def num_records(self) -> int:
        """Intact records only."""
        return len(self.rows) // 2


@dataclass(frozen=True)
class IndexedSplit:
    """The files of a split in the order of their names, which is the order of records."""

    files: tuple[IndexedFile, ...]

    @property
    def num_records(self) -> int:
        """In all files."""
        return sum(file.num_records for file in self.files)

    def schema(self) -> Schema:
        """The merged schema of all records, of which there must be one. Raises SchemaError on conflicting features."""
        return merged_schema(file.schema for file in self.files if file.schema)

    @cached_property
    def index(self) -> bytes:
        """The index file, cached: it is both checksummed and written."""
        columns = [np.frombuffer(file.rows, np.uint32) for file in self.files]
        return encode_index(np.concatenate(columns).reshape(-1, 2))

    def entry(self) -> SplitEntry:
        """The split's entry in the manifest. docs/format.md defines the digests."""
        shards = tuple(ShardEntry(file.name, file.num_records, file.bytes, file.crc32c) for file in self.files)
        keys = add_digests(file.key_digest for file in self.files)
        sources = {"inputs": len(shards), "bytes": sum(shard.bytes for shard in shards)}
        entry = SplitEntry(shards, crc32c(self.index), "", f"{keys:032x}", seed=0, sources=sources)
        plan = blake2b(f"infeed index\0{entry.fingerprint}\0{entry.index_crc32c:08x}".encode(), digest_size=16)
        return replace(entry, plan_digest=plan.hexdigest())


@dataclass(frozen=True)
class IndexBuilder:
    """Reads the files of a split.

    schema: what every record must match; None infers what they have in common. read: called with the bytes read."""

    storage: Storage
    directory: str
    split: str
    schema: Schema | None = None
    read: Callable[[int], object] = lambda _: None

    def files(self, files: Mapping[str, Stat]) -> Iterator[IndexedFile]:
        """Yields these files in order; reads several at a time."""
        with ThreadPoolExecutor(files_at_once(self.storage), thread_name_prefix="infeed-index") as pool:
            yield from pool.map(self._read_file, files.keys(), files.values())  # left early, map cancels the others

    def _read_file(self, name: str, stat: Stat) -> IndexedFile:
        path, guess, checksum = join(self.directory, name), SchemaGuess(), google_crc32c.Checksum()
        found = IndexedFile(name, stat.bytes)
        try:
            if not stat.bytes:  # dangling links and pipes are listed as empty, too; stat raises for them
                self.storage.stat(path)
            pieces = pieces_of(self.storage, path, stat.bytes, PIECE_BYTES, checksum, read=self.read)
            for frame in read_frames(pieces, None, min(stat.bytes, MAX_INDEXED_BYTES)):
                problem = frame.problem or self._problem_inside(frame.payload, guess)
                if problem:
                    found.problems.append(f"{path}, record {frame.record} at byte {frame.offset}: {problem}")
                else:
                    self._add(found, frame)
        except StorageError as e:
            found.problems.append(f"{e}")
        found.schema = self.schema if found.rows and self.schema else guess.schema
        found.crc32c = int.from_bytes(checksum.digest(), "big")
        if not found.problems and not stat.agrees_with(Stat(stat.bytes, found.crc32c)):
            found.problems.append(f"{path} has crc32c {found.crc32c:08x}, but it was listed with {stat}")
        return found

    def _problem_inside(self, payload: bytes, guess: SchemaGuess) -> str:
        if self.schema is not None:
            return payload_problem(self.schema, payload)
        guess.add(payload)
        return ""

    def _add(self, found: IndexedFile, frame: Frame) -> None:
        found.rows.extend((len(frame.payload), frame.crc))
        key = record_key(self.split, found.name, frame.record).encode("utf-8", "surrogateescape")
        found.key_digest += key_digest([key])
