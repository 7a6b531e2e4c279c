"""What a dataset must know to be converted. beam_jobs owns this protocol; converters/ fulfils it.

A converter is pure: a frozen dataclass that pickles, reads raw data and returns values. It never writes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from beam_jobs.references import Reference, References
from pipeline.shards.example import Value
from pipeline.shards.schema import Labels, Schema
from pipeline.shards.storage import Stat, Storage

__all__ = ["Converted", "Converter", "Reject", "Source"]

_BYTES_PER_FOLDER = 10**8  # a listing says nothing of the size of its files beforehand


@dataclass(frozen=True)
class Source:
    """One unit of scanning: a raw file, a byte range of one, such as a class tar inside the train tar, or a folder."""

    split: str
    uri: str
    stat: Stat  # of the whole file: a change between scan and gather is an error
    offset: int = 0
    bytes: int = 0  # of the range
    tag: str = ""  # for the converter: the class, say
    kind: Literal["tar", "zip", "folder", "file"] = "tar"  # a folder has no bytes of its own: each of its files does
    origin: str = ""  # of a temporary file: the compressed file that it was made from, whose stamp `stat` has

    @property
    def name(self) -> str:
        """For messages."""
        uri = self.origin or self.uri
        return f"{uri} ({self.tag})" if self.tag else uri

    @property
    def guessed_bytes(self) -> int:
        """Its bytes, nearly."""
        return self.bytes or _BYTES_PER_FOLDER


class Reject(Exception):  # noqa: N818 - an outcome of a record, not an error of the program
    """Raised by `convert`: this record cannot be converted, and why. It goes to the ledger; the job goes on."""


@dataclass(frozen=True)
class Converted:
    """A record's features, and the kinds of repair that its raw bytes needed.

    features: or the record itself, serialised, where the raw data hold it as it shall be.
    notes: what a user may want to know of it, each worded to follow "in 3 of 10 records"; they are counted."""

    features: Mapping[str, Value] | bytes
    fixups: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Converter(Protocol):
    """Dataset knowledge: where the records are, and what a record becomes."""

    @property
    def name(self) -> str:
        """The dataset's name."""
        ...

    @property
    def schema(self) -> Schema:
        """Of every record."""
        ...

    @property
    def labels(self) -> Labels | None:
        """Names of the label numbers, if there are labels."""
        ...

    @property
    def transforms(self) -> bool:
        """Whether records are encoded anew, so that record_bytes only guesses: some are then converted beforehand."""
        ...

    @property
    def worker_files(self) -> Sequence[str]:
        """Files that workers read in addition to the sources. On Dataflow they must be in a bucket."""
        ...

    def digest_fields(self) -> Mapping[str, Any]:
        """JSON values of everything in the converter that changes bytes: options, label files, its version."""
        ...

    def scan(self, storage: Storage, source: Source) -> Iterator[References]:
        """References to all records of a source, bad ones with an error. Pure: some runners run it twice."""
        ...

    def record_bytes(self, refs: References) -> np.ndarray:
        """int64: the predicted size of each encoded record, which balances the shards."""
        ...

    def convert(self, ref: Reference, data: bytes) -> Converted:
        """One record from its raw bytes. Raises Reject."""
        ...
