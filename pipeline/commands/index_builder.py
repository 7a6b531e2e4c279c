"""Builds the index of foreign TFRecord files by reading every byte of them once;
pipeline.commands.index publishes it.

Memory: a few MB and a record per thread, and 8 bytes per record, 32 while the index is encoded.

Checks of a record's contents, which verify, index, describe and converters share: does it match the
schema, what are its labels, does its image decode? Needs no TensorFlow."""

import io
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import google_crc32c
import numpy as np
from PIL import Image, UnidentifiedImageError

from pipeline.errors import Reject, SchemaError, StorageError
from pipeline.pages.figures import UNREADABLE
from pipeline.raw.jpeg import decode_image, decode_jpeg
from pipeline.shards.example_decoding import FeatureShape, example_shapes
from pipeline.shards.frames import MAX_INDEXED_BYTES, crc32c, read_frames
from pipeline.shards.manifest import ShardEntry, SplitEntry
from pipeline.shards.naming import add_digests, hex_digest, key_digest, record_key
from pipeline.shards.schema import Labels, Schema
from pipeline.shards.split_index import encode_index
from pipeline.sources.merged_schemas import SchemaGuess, merged_schema
from pipeline.storage.storage import Listing, Stat, Storage, files_at_once, join, pieces_of

_JPEG_MAGIC = b"\xff\xd8"
Values = Mapping[str, Sequence[Any]]
PIECE_BYTES = 4 * 1024**2


def schema_problems(schema: Schema, shapes: Mapping[str, FeatureShape]) -> Iterator[str]:
    """Features that are missing or unknown, or whose dtype or number of values differs from the
    schema."""
    for key in sorted(shapes.keys() - schema.features.keys()):
        yield f"{key!r} is not in schema {schema.name!r}"
    for key, feature in schema.features.items():
        entry = shapes.get(key)
        num_values = feature.num_values
        if entry is None:
            if not feature.optional:
                yield f"{key!r} is missing; schema {schema.name!r} has it in every record"
        elif entry.dtype != feature.dtype:
            yield f"{key!r} is of {entry.dtype}; its dtype is {feature.dtype}"
        elif num_values is not None and entry.num_values != num_values:
            yield (
                f"{key!r} has {entry.num_values} values; its shape {list(feature.shape)} holds "
                f"{num_values}"
            )


def payload_problem(schema: Schema, payload: bytes) -> str:
    """Why a payload is not a record of the schema; "" if it is, as every payload is of an opaque
    one."""
    try:
        return "" if schema.opaque else "; ".join(schema_problems(schema, example_shapes(payload)))
    except SchemaError as e:
        return str(e).rstrip(".")


def labels_of(labels: Labels | None, values: Values) -> list[int]:
    """The record's labels: any number of them."""
    labels_in_record = values.get(labels.key, ()) if labels else ()
    return [label for label in labels_in_record if isinstance(label, int)]


def label_problems(labels: Labels | None, values: Values) -> Iterator[str]:
    """Labels outside the range of known classes."""
    for label in labels_of(labels, values):
        assert labels
        if labels.name_of(label) is None:
            yield (
                f"label {label} in {labels.key!r} is outside "
                f"{labels.base}..{labels.base + len(labels.names) - 1}"
            )


def image_problem(data: bytes) -> str:
    """Decodes every pixel of an image file (~1 ms for a 500x375 JPEG). Returns the problem, or
    ""."""
    try:
        if data.startswith(_JPEG_MAGIC):
            decode_jpeg(data)
            return ""
        with Image.open(io.BytesIO(data)) as image:
            if image.format == "EPS":
                return "an EPS file, which Pillow would decode with Ghostscript: not read"
            image.verify()  # a PNG's checksums: the pixels of a truncated file may be complete
        decode_image(data)
    except Reject as e:
        return str(e)
    except UnidentifiedImageError:
        return (
            f"not an image that Pillow recognizes: it starts with {data[:4].hex(' ') or 'nothing'}"
        )
    except UNREADABLE as e:
        return f"truncated or damaged image: {str(e)[:200]}"
    return ""


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
