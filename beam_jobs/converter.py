"""The protocol between beam_jobs and converters: everything that is specific to a dataset.

A converter is pure: a picklable frozen dataclass that reads raw data and returns values. It never writes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from beam_jobs.references import Reference, References
from pipeline.shards.example import Value
from pipeline.shards.schema import Labels, Schema
from pipeline.storage.storage import Stat, Storage

__all__ = ["Converted", "Converter", "Reject", "Source"]

_BYTES_PER_FOLDER = 10**8  # a guess: the sizes of a folder's files are unknown before it is listed


@dataclass(frozen=True)
class Source:
    """One unit of scanning: a raw file, a byte range of a file (a class tar inside the train tar), or a folder.

    split: that its records belong to. uri, stat: of the entire file; a change between scan and gather is an error.
    offset, bytes: of the range. tag: for the converter, such as the class. kind: a folder has no bytes of its own.
    origin: of a temporary file, the compressed file it was made from, whose stamp is in `stat`."""

    split: str
    uri: str
    stat: Stat
    offset: int = 0
    bytes: int = 0
    tag: str = ""
    kind: Literal["tar", "zip", "folder", "file"] = "tar"
    origin: str = ""

    @property
    def name(self) -> str:
        """The name in messages."""
        uri = self.origin or self.uri
        return f"{uri} ({self.tag})" if self.tag else uri

    @property
    def guessed_bytes(self) -> int:
        """Its size; a guess for a folder."""
        return self.bytes or _BYTES_PER_FOLDER


class Reject(Exception):  # noqa: N818 - an outcome of a record, not an error of the program
    """Raised by `convert` with the reason why a record cannot be converted. The ledger lists it; the job continues."""


@dataclass(frozen=True)
class Converted:
    """A converted record.

    features: or the serialized record, if the raw data already contains it.
    fixups: the kinds of repair that its raw bytes needed.
    notes: remarks for the user, which are counted. Each follows the words "in 3 of 10 records"."""

    features: Mapping[str, Value] | bytes
    fixups: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Converter(Protocol):
    """Finds the records of a dataset and converts them."""

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

    def scan(self, storage: Storage, source: Source) -> Iterator[References]:
        """References to all records of a source, with an error for bad ones. Pure: some runners run it twice.

        Annotations of a record travel as columns of its reference; tables that all records share are fields."""
        ...

    def record_bytes(self, refs: References) -> np.ndarray:
        """int64: the predicted size of each encoded record, for balancing the shards."""
        ...

    def convert(self, ref: Reference, data: bytes) -> Converted:
        """Converts the raw bytes of one record. Raises Reject."""
        ...
