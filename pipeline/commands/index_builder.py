"""Builds the index of foreign TFRecord files by reading every byte of them once;
pipeline.commands.index publishes it.

Memory: a few MB and a record per thread, and 8 bytes per record.
Needs no TensorFlow."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import google_crc32c
import numpy as np

from pipeline.errors import StorageError
from pipeline.shards.frames import MAX_INDEXED_BYTES, read_frames
from pipeline.shards.index_writer import write_index
from pipeline.shards.manifest import ShardEntry, SplitEntry
from pipeline.shards.naming import add_digests, hex_digest, key_digest, record_key
from pipeline.shards.schema import Schema
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


def schema_of(files: Sequence[IndexedFile]) -> Schema:
    """The merged schema of all records, of which there must be one. Raises SchemaError on
    conflicting features."""
    return merged_schema(file.schema for file in files if file.schema)


def publish_index(
    storage: Storage, directory: str, split: str, files: Sequence[IndexedFile]
) -> SplitEntry:
    """Publishes the index of a split with these files, in the order of their names, which is the
    order of records. Returns its entry in the manifest. docs/format.md defines the digests."""
    rows = (np.frombuffer(file.rows, np.uint32).reshape(-1, 2) for file in files)
    records = sum(file.num_records for file in files)
    crc = write_index(storage, directory, split, records, rows)
    shards = tuple(
        ShardEntry(file.name, file.num_records, file.bytes, file.crc32c) for file in files
    )
    keys = add_digests(file.key_digest for file in files)
    sources = {"inputs": len(shards), "bytes": sum(shard.bytes for shard in shards)}
    entry = SplitEntry(shards, crc, "", f"{keys:032x}", seed=0, sources=sources)
    plan = f"infeed index\0{entry.fingerprint}\0{entry.index_crc32c:08x}"
    return replace(entry, plan_digest=hex_digest(plan.encode()))


def indexed_files(
    storage: Storage,
    directory: str,
    split: str,
    files: Listing,
    schema: Schema | None = None,
    read: Callable[[int], object] = lambda _: None,
) -> Iterator[IndexedFile]:
    """Reads the files of a split, several at a time, and yields them in order.

    schema: what every record must match; None infers what they have in common. read: called with
    the bytes read."""

    def indexed(name: str, stat: Stat) -> IndexedFile:
        path = join(directory, name)
        guess = SchemaGuess()
        checksum = google_crc32c.Checksum()
        file = IndexedFile(name, stat.bytes)
        try:
            # dangling links and pipes are listed as empty, too; stat raises for them
            if not stat.bytes:
                storage.stat(path)
            pieces = pieces_of(storage, path, stat.bytes, PIECE_BYTES, checksum, read=read)
            for frame in read_frames(pieces, None, min(stat.bytes, MAX_INDEXED_BYTES)):
                problem = frame.problem
                if not problem and schema:
                    problem = payload_problem(schema, frame.payload)
                elif not problem:
                    guess.add(frame.payload)
                if problem:
                    where = f"{path}, record {frame.record} at byte {frame.offset}"
                    file.problems.append(f"{where}: {problem}")
                    continue
                file.rows.extend((len(frame.payload), frame.crc))
                key = record_key(split, name, frame.record)
                file.key_digest += key_digest([key.encode("utf-8", "surrogateescape")])
        except StorageError as e:
            file.problems.append(f"{e}")
        file.schema = schema if file.rows and schema else guess.schema
        file.crc32c = int.from_bytes(checksum.digest(), "big")
        if not file.problems and not stat.agrees_with(Stat(stat.bytes, file.crc32c)):
            file.problems.append(
                f"{path} has crc32c {file.crc32c:08x}, but it was listed with {stat}"
            )
        return file

    with ThreadPoolExecutor(files_at_once(storage), thread_name_prefix="infeed-index") as pool:
        # left early, map cancels the others
        yield from pool.map(indexed, files.keys(), files.values())
