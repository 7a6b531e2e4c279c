"""The protocol between beam_jobs and converters: everything that is specific to a dataset.

A converter is pure: a picklable frozen dataclass that reads raw data and returns values. It never writes."""

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from beam_jobs.references import File, Reference, References
from pipeline.errors import Reject
from pipeline.shards.example import Value
from pipeline.shards.schema import Labels, Schema
from pipeline.storage.storage import Stat, Storage

__all__ = ["Converted", "Converter", "Pack", "Packer", "Reject", "Source", "Unusable", "files_of", "group_of"]

_BYTES_PER_FOLDER = 10**8  # a guess: the sizes of a folder's files are unknown before it is listed


_Group = bytes  # the class below has a field `bytes`


@dataclass(frozen=True)
class Source:
    """One unit of scanning: a raw file, a byte range of one (a class tar inside the train tar), a folder, or a group.

    split: that its records belong to. uri, stat: of the entire file; a change between scan and gather is an error.
    offset, bytes: of the range. tag: for the converter, such as the class. kind: a folder has no bytes of its own.
    origin: of a temporary file, the compressed file it was made from, whose stamp is in `stat`.
    group: of many small files that are scanned one after the other, all of them, as group_of encodes them; uri is that
    of the first."""

    split: str
    uri: str
    stat: Stat
    offset: int = 0
    bytes: int = 0
    tag: str = ""
    kind: Literal["tar", "zip", "folder", "file", "group"] = "tar"
    origin: str = ""
    group: _Group = b""

    @property
    def file(self) -> File:
        """The entire file."""
        return File(self.uri, self.stat)

    @property
    def name(self) -> str:
        """The name in messages."""
        uri = self.origin or self.uri
        if self.group and (count := len(files_of(self))) > 1:
            return f"one of {count:,} files starting with {uri}"
        return f"{uri} ({self.tag})" if self.tag else uri

    @property
    def guessed_bytes(self) -> int:
        """Its size; a guess for a folder."""
        return self.bytes or _BYTES_PER_FOLDER


@dataclass(frozen=True)
class Converted:
    """A converted record.

    features: or the serialized record, if the raw data already contains it.
    fixups: the kinds of repair that its raw bytes needed.
    notes: remarks for the user, which are counted. Each follows the words "in 3 of 10 records".
    totals: counts by name; the manifest states their sums over the split."""

    features: Mapping[str, Value] | bytes
    fixups: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    totals: Mapping[str, int] = field(default_factory=dict)


class _AnyConverter(Protocol):
    """What both kinds of converters state of their records, and do with them."""

    @property
    def name(self) -> str:
        """The dataset's name."""
        ...

    @property
    def schema(self) -> Schema:
        """The schema of every record."""
        ...

    @property
    def labels(self) -> Labels | None:
        """Names of the label numbers; None without labels."""
        ...

    @property
    def transforms(self) -> bool:
        """Whether records are re-encoded, so that record_bytes only guesses. A sample is then converted first."""
        ...

    @property
    def worker_files(self) -> Sequence[str]:
        """Files that workers read in addition to the sources. On Dataflow they must be in a bucket."""
        ...

    def digest_fields(self) -> Mapping[str, Any]:
        """JSON values of everything in the converter that affects output bytes: options, label files, and
        a version such as "idx/1" that is raised whenever the same raw data would give other bytes."""
        ...

    def record_bytes(self, refs: References) -> np.ndarray:
        """int64: the predicted size of each encoded record, for balancing the shards."""
        ...

    def convert(self, ref: Reference, data: bytes) -> Converted:
        """Converts the raw bytes of one record. Raises Reject."""
        ...


class Converter(_AnyConverter, Protocol):
    """Finds the records of a dataset and converts them."""

    def scan(self, storage: Storage, source: Source) -> Iterator[References]:
        """References to all records of a source, with an error for bad ones. Pure: some runners run it twice.

        Annotations of a record travel as columns of its reference; tables that all records share are fields."""
        ...


@dataclass(frozen=True)
class Unusable:
    """A piece of raw data that no record can contain. It is rejected as a record would be.

    key: unique in the split. file, offset: where it begins. error: why it cannot be used."""

    key: str
    file: File
    offset: int
    error: str


@dataclass(frozen=True)
class Pack:
    """Records made of one window of a source.

    keys, payloads: of each record; payloads are what `convert` gets as its raw bytes. columns: int64 [records], the
    converter's own columns of their references. unusable: pieces of the window that are in no record."""

    keys: Sequence[str]
    payloads: Sequence[bytes]
    columns: Mapping[str, np.ndarray]
    unusable: Sequence[Unusable] = ()


@runtime_checkable
class Packer(_AnyConverter, Protocol):
    """A converter of which each record is made of several pieces of raw data, such as rows of packed text.

    Its records are written to temporary files before they are shuffled: see packed_files."""

    def windows(self, storage: Storage, source: Source) -> Iterator[Any]:
        """The pieces of a source in groups, each small enough to be in memory. Pure and, unlike `pack`, cheap."""
        ...

    def pack(self, source: Source, number: int, window: Any) -> Pack:
        """The records of the window with this number, counted from 0 in its source. Pure."""
        ...

    def files(self) -> Mapping[str, bytes]:
        """Name -> content of files to publish next to the manifest, which readers need."""
        ...


def files_of(source: Source) -> tuple[File, ...]:
    """The raw files of a source."""
    if not source.group:
        return (source.file,)
    return tuple(File(uri, Stat(*stat)) for uri, *stat in json.loads(zlib.decompress(source.group)))


def group_of(files: Sequence[File]) -> bytes:
    """The files of a Source's group. Every stage of a job is sent its sources: objects would take a minute."""
    return zlib.compress(json.dumps([(file.uri, *file.stat) for file in files]).encode())
