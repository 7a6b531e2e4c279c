"""Builds the index of foreign TFRecord files by reading every byte of them once;
pipeline.commands.index publishes it.

Memory: a few MB and a record per thread, and 8 bytes per record, 32 while the index is encoded.
Needs no TensorFlow."""

from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property

import google_crc32c
import numpy as np

from pipeline.errors import StorageError
from pipeline.shards.frames import MAX_INDEXED_BYTES, crc32c, read_frames
from pipeline.shards.manifest import ShardEntry, SplitEntry
from pipeline.shards.naming import add_digests, hex_digest, key_digest, record_key
from pipeline.shards.schema import Schema
from pipeline.shards.split_index import encode_index
from pipeline.sources.merged_schemas import SchemaGuess, merged_schema
from pipeline.sources.record_checks import payload_problem
from pipeline.storage.storage import Listing, Stat, Storage, files_at_once, join, pieces_of

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
        """The records of all files."""
        return sum(file.num_records for file in self.files)

    def schema(self) -> Schema:
        """The merged schema of all records, of which there must be one. Raises SchemaError on
        conflicting features."""
        return merged_schema(file.schema for file in self.files if file.schema)

    @cached_property
    def index(self) -> bytes:
        """The index file, cached: it is both checksummed and written."""
        columns = [np.frombuffer(file.rows, np.uint32) for file in self.files]
        return encode_index(np.concatenate(columns).reshape(-1, 2))

    def entry(self) -> SplitEntry:
        """The split's entry in the manifest. docs/format.md defines the digests."""
        shards = tuple(
            ShardEntry(file.name, file.num_records, file.bytes, file.crc32c) for file in self.files
        )
        keys = add_digests(file.key_digest for file in self.files)
        sources = {"inputs": len(shards), "bytes": sum(shard.bytes for shard in shards)}
        entry = SplitEntry(shards, crc32c(self.index), "", f"{keys:032x}", seed=0, sources=sources)
        plan = f"infeed index\0{entry.fingerprint}\0{entry.index_crc32c:08x}"
        return replace(entry, plan_digest=hex_digest(plan.encode()))


@dataclass(frozen=True)
class IndexBuilder:
    """Reads the files of a split.

    schema: what every record must match; None infers what they have in common. read: called with
    the bytes read."""

    storage: Storage
    directory: str
    split: str
    schema: Schema | None = None
    read: Callable[[int], object] = lambda _: None

    def files(self, files: Listing) -> Iterator[IndexedFile]:
        """Yields these files in order; reads several at a time."""
        with ThreadPoolExecutor(
            files_at_once(self.storage), thread_name_prefix="infeed-index"
        ) as pool:
            # left early, map cancels the others
            yield from pool.map(self._read_file, files.keys(), files.values())

    def _read_file(self, name: str, stat: Stat) -> IndexedFile:
        path = join(self.directory, name)
        guess = SchemaGuess()
        checksum = google_crc32c.Checksum()
        file = IndexedFile(name, stat.bytes)
        try:
            # dangling links and pipes are listed as empty, too; stat raises for them
            if not stat.bytes:
                self.storage.stat(path)
            pieces = pieces_of(
                self.storage, path, stat.bytes, PIECE_BYTES, checksum, read=self.read
            )
            for frame in read_frames(pieces, None, min(stat.bytes, MAX_INDEXED_BYTES)):
                problem = frame.problem
                if not problem and self.schema:
                    problem = payload_problem(self.schema, frame.payload)
                elif not problem:
                    guess.add(frame.payload)
                if problem:
                    file.problems.append(
                        f"{path}, record {frame.record} at byte {frame.offset}: {problem}"
                    )
                    continue
                file.rows.extend((len(frame.payload), frame.crc))
                key = record_key(self.split, name, frame.record)
                file.key_digest += key_digest([key.encode("utf-8", "surrogateescape")])
        except StorageError as e:
            file.problems.append(f"{e}")
        file.schema = self.schema if file.rows and self.schema else guess.schema
        file.crc32c = int.from_bytes(checksum.digest(), "big")
        if not file.problems and not stat.agrees_with(Stat(stat.bytes, file.crc32c)):
            file.problems.append(
                f"{path} has crc32c {file.crc32c:08x}, but it was listed with {stat}"
            )
        return file
