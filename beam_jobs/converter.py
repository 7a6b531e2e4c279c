"""The protocol between beam_jobs and converters: everything that is specific to a dataset.

A converter is pure: a picklable frozen dataclass that reads raw data and returns values. It never
writes.

A ConversionJob describes a conversion; its launcher sends it to every worker."""

import dataclasses
import json
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from beam_jobs.rows.references import File, Reference, References
from pipeline.errors import Reject
from pipeline.shards.example import Value
from pipeline.shards.schema import Labels, Schema
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import Stat, Storage, join

__all__ = [
    "Converted",
    "Converter",
    "Pack",
    "Packer",
    "Reject",
    "Source",
    "files_of",
    "group_of",
]

MOST_LISTED = 1000  # bad records above the allowed number: a conversion with fewer lists all
_BYTES_PER_FOLDER = 10**8  # a guess: the sizes of a folder's files are unknown before it is listed
_Group = bytes  # the class below has a field `bytes`
_BYTES_PER_BUCKET = 4 * 10**9  # of raw data; ~36,000 ImageNet references sort in one element
_MIN_BUCKETS = 8  # each source has a piece per bucket, of ~1 KB or more
_SCANS_AT_ONCE = 16


@dataclass(frozen=True)
class Source:
    """One unit of scanning: a raw file, a byte range of one (a class tar inside the train tar), a
    folder, or a group.

    split: that its records belong to.
    uri, stat: of the entire file; a change between scan and gather is an error.
    offset, bytes: of the range.
    tag: for the converter, such as the class.
    kind: a folder has no bytes of its own.
    origin: the compressed file of which a temporary file is a copy, and whose stamp is in `stat`.
    group: many small files that are scanned one after the other, encoded by group_of; uri is that
        of the first.
    piece: the part of the source that a worker reads, defined by the converter; None for all."""

    split: str
    uri: str
    stat: Stat
    offset: int = 0
    bytes: int = 0
    tag: str = ""
    kind: Literal["tar", "zip", "folder", "file", "group"] = "tar"
    origin: str = ""
    group: _Group = b""
    piece: Any = None

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
        return uri if uri.endswith(self.tag) else f"{uri} ({self.tag})"

    @property
    def guessed_bytes(self) -> int:
        """Its size; a guess for a folder."""
        return self.bytes or _BYTES_PER_FOLDER


@dataclass(frozen=True)
class Converted:
    """A converted record.

    features: or the serialized record, if the raw data already contains it.
    fixups: the kinds of repair that its raw bytes needed.
    notes: remarks for the user, which are counted. Each follows the words "in 3 of 10 records",
        unless it contains {}, which is replaced by the count.
    totals: counts by name; the manifest states their sums over the split.
    content: identifies copies, if the raw bytes do not."""

    features: Mapping[str, Value] | bytes
    fixups: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    totals: Mapping[str, int] = field(default_factory=dict)
    content: bytes = b""


class _AnyConverter(Protocol):
    """The members that both kinds of converters have."""

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
        """Whether records are re-encoded, so that record_bytes only guesses. A sample is then
        converted first."""
        ...

    @property
    def worker_files(self) -> Sequence[str]:
        """Files that workers read in addition to the sources. On Dataflow they must be in a
        bucket."""
        ...

    def core_seconds_per_gb(self, name: str, /) -> float:
        """Roughly how long one core takes for 1 GB of files with such a name; 0 if the disk is the
        limit, because bytes are only copied. Decides the default of --local-processes."""
        ...

    def digest_fields(self) -> Mapping[str, Any]:
        """JSON values of everything in the converter that affects output bytes: options, label
        files, and a version such as "idx/1", to be raised whenever the same raw data would produce
        other bytes."""
        ...


class Converter(_AnyConverter, Protocol):
    """Finds the records of a dataset and converts them."""

    def scan(self, storage: Storage, source: Source) -> Iterator[References]:
        """References to all records of a source, with an error for bad ones. Pure: some runners run
        it twice.

        Annotations of a record travel as columns of its reference; tables that all records share
        are fields."""
        ...

    def record_bytes(self, refs: References) -> np.ndarray:
        """int64: the predicted size of each encoded record, for balancing the shards."""
        ...

    def convert(self, ref: Reference, data: bytes) -> Converted:
        """Converts the raw bytes of one record. Raises Reject."""
        ...


@dataclass(frozen=True)
class Pack:
    """The records of one window of a source, or of a piece of one.

    keys: of each record, unique in the split.
    data, sizes: the concatenated records, and the size of each, int64 [records].
    offsets: where the raw data of each begins, int64 [records].
    columns: values for the converter's `tally`, int64 [records].
    unusable: pieces of the window that are in no record. They are rejected like records."""

    keys: Sequence[bytes]
    data: bytes
    sizes: np.ndarray
    offsets: np.ndarray
    columns: Mapping[str, np.ndarray]
    unusable: Sequence[Reference] = ()


@runtime_checkable
class Packer(_AnyConverter, Protocol):
    """A converter whose records consist of several pieces of raw data each, such as rows of packed
    text.

    The scan writes its records to temporary files, which are not shuffled: see packed_files."""

    def windows(self, storage: Storage, source: Source) -> Iterator[Any]:
        """Yields the pieces of a source in groups that have a length and are small enough for
        several copies in memory. Pure and, unlike `pack`, cheap."""
        ...

    def pack(self, source: Source, number: int, window: Any) -> Pack:
        """The records of a window. number: of the window in its source, from 0. Pure."""
        ...

    def tally(self, columns: Mapping[str, np.ndarray]) -> tuple[Counter[str], Counter[str]]:
        """The notes on records with these columns, and their totals: see Converted."""
        ...

    def files(self) -> Mapping[str, bytes]:
        """Files to publish next to the manifest, which readers need: name -> content."""
        ...


def files_of(source: Source) -> tuple[File, ...]:
    """The raw files of a source."""
    if not source.group:
        return (source.file,)
    return tuple(File(uri, Stat(*stat)) for uri, *stat in json.loads(zlib.decompress(source.group)))


def group_of(files: Sequence[File]) -> bytes:
    """The files, encoded for the group of a Source. Every process unpickles all sources: objects
    would take a minute."""
    return zlib.compress(json.dumps([(file.uri, *file.stat) for file in files]).encode())


@dataclass(frozen=True)
class Waiting:
    """What a launcher does after submitting a job to a service that no longer needs it."""

    detach: bool = False  # exit immediately
    cancel_on_interrupt: bool = False  # Ctrl-C cancels the job instead of only ending the wait


@dataclass(frozen=True)
class ConversionJob:
    """The description of a conversion. Immutable, and pickled to every worker."""

    converter: Converter | Packer
    sources: tuple[Source, ...]
    output_dir: str
    target_shard_bytes: int = 100 * 10**6
    # by split; absent or None: derived from target_shard_bytes
    num_shards: Mapping[str, int | None] = field(default_factory=dict)
    seed: int = 0
    max_bad_records: int = 0
    overwrite: bool = False  # replaces a split of another plan instead of refusing it
    verify_existing: bool = False  # reads finished shards instead of comparing sizes
    scratch: tuple[str, ...] = ()  # temporary files among the sources, removed by the commit
    # required number of records by split, if there is one
    expected: Mapping[str, int] = field(default_factory=dict)
    # of a Packer's source, by URI, in order, for one worker each. They do not affect the output
    pieces: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    dry_run: bool = False  # writes nothing
    local_processes: int = 1  # for the report
    # identifies this run in its verdict; never in data
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex, compare=False)
    started: float = field(default_factory=time.time, compare=False)  # Unix seconds

    @property
    def output(self) -> Storage:
        """The storage of the output directory."""
        return open_storage(self.output_dir)

    def path(self, name: str) -> str:
        """The path of a file in the output directory."""
        return join(self.output_dir, name)

    @property
    def most_rejected(self) -> int:
        """How many rejected records of a split are listed. A source or shard with more stops the
        conversion."""
        return self.max_bad_records + MOST_LISTED

    @property
    def files(self) -> Mapping[str, bytes]:
        """Files to publish next to the manifest, which readers need: name -> content."""
        return self.converter.files() if isinstance(self.converter, Packer) else {}

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """The splits to write. Sorted, because their numbers are part of the shuffle keys."""
        return tuple(sorted({source.split for source in self.sources}))

    def sources_of(self, split: str) -> list[Source]:
        """The sources of a split, in order."""
        return [source for source in self.sources if source.split == split]

    @cached_property
    def scans(self) -> Sequence[Sequence[tuple[int, Any]]]:
        """What workers scan, in groups: (number of a source, piece of it or None). Sources in
        buckets form groups of 16 to scan in parallel, because such scans mostly wait."""
        if isinstance(self.converter, Packer):  # limited by the CPU, and with much in memory
            numbered = enumerate(self.pieces.get(source.uri, (None,)) for source in self.sources)
            return [[(number, piece)] for number, pieces in numbered for piece in pieces]
        here, remote = list[tuple[int, None]](), list[tuple[int, None]]()
        for number, source in enumerate(self.sources):
            (remote if is_remote(source.uri) else here).append((number, None))
        groups = [remote[i : i + _SCANS_AT_ONCE] for i in range(0, len(remote), _SCANS_AT_ONCE)]
        return [*groups, *([each] for each in here)]

    def source(self, number: int, piece: Any) -> Source:
        """A piece of a source, or all of it."""
        return dataclasses.replace(self.sources[number], piece=piece)

    @property
    def num_elements(self) -> int:
        """The number of elements of the first stage, which are the numbers below it."""
        return len(self.scans)

    @cached_property
    def plans(self) -> dict[str, Any]:
        """The SplitPlan of each split, once its sums are known."""
        return {}

    @cached_property
    def converter_fields(self) -> str:
        """The digest_fields of the converter, as JSON, which may list thousands of classes."""
        return json.dumps(dict(self.converter.digest_fields()), sort_keys=True)

    @cached_property
    def raw_bytes(self) -> int:
        """The size of the raw data, with guesses for folders."""
        return sum(source.guessed_bytes for source in self.sources)

    @cached_property
    def num_buckets(self) -> int:
        """A power of two that grows with the input. It does not affect the output."""
        return max(_MIN_BUCKETS, 1 << (self.raw_bytes // _BYTES_PER_BUCKET).bit_length())
