"""The manifest: the contents of a dataset directory. It is written last, so a split that it lists
is complete.

It has one entry per split. Later conversions add theirs: a validation split may follow a train
split days later."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pipeline.checks import did_you_mean
from pipeline.errors import EmptySplitError, ManifestError, OptionError, StorageError
from pipeline.shards.naming import MANIFEST_FILE, hex_digest
from pipeline.shards.schema import Labels, Schema
from pipeline.shards.typed_json import (
    CHECKSUM,
    Count,
    FileName,
    Json,
    JsonFile,
    NonEmpty,
    sealed,
    unsealed,
)
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Stat, Storage, join, read_file

FORMAT_VERSION = 1
INDEX_WRITER = "infeed index"  # prefix of `writer` if the shards were found, not written
_MEND = (
    "Copy it again; or delete it and run the command that wrote it again for all its splits: "
    "finished shards are kept."
)
_EDITED = f": it is damaged. If you edited it on purpose, remove its field {CHECKSUM!r}"


@dataclass(frozen=True)
class ShardEntry:
    """One shard file, and the numbers and checksum that identify its content."""

    file: FileName
    records: Count
    bytes: Count
    crc32c: Count  # of the complete file

    def problem(self, listed: Stat | None) -> str:
        """What is wrong with the file by its entry in a listing, None if it has none; "" if nothing
        is."""
        if listed is None:
            return "is missing"
        ours = Stat(self.bytes, self.crc32c)
        return "" if listed.agrees_with(ours) else f"has {listed}, the manifest says {ours}"


@dataclass(frozen=True)
class SplitEntry:
    """One finished split."""

    shards: NonEmpty[ShardEntry]
    index_crc32c: Count  # of the index file
    plan_digest: str  # of the conversion plan that wrote it
    key_digest: str  # of the records' keys, in any order
    seed: int  # of the order of records
    rejected: Count = 0  # inputs that could not be converted; the ledger lists them
    fixups: Mapping[str, int] = field(default_factory=dict)  # number of re-encoded records, by kind
    # size of the raw data: {"inputs", "bytes"}
    sources: Mapping[str, int] = field(default_factory=dict)
    # sums over all records, such as {"num_bytes"} of text
    totals: Mapping[str, Count] = field(default_factory=dict)

    @property
    def num_records(self) -> int:
        """Records in all shards."""
        return sum(shard.records for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Bytes of all shard files."""
        return sum(shard.bytes for shard in self.shards)

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits that identify the data, computed from names, sizes and checksums of the
        shards.

        It does not depend on path, owner or times: a copied dataset has the same fingerprint."""
        lines = (f"{s.file} {s.records} {s.bytes} {s.crc32c:08x}\n" for s in self.shards)
        return hex_digest("".join(lines).encode(errors="surrogatepass"))


@dataclass(frozen=True)
class Manifest:
    """A dataset: schema, labels and finished splits."""

    name: str
    schema: Schema
    splits: Mapping[str, SplitEntry]
    labels: Labels | None = None
    writer: str = ""  # the program and version that wrote it
    directory: str = ""  # where it was read; not stored

    @property
    def is_index(self) -> bool:
        """Whether the shards were found and indexed, not written."""
        return self.writer.startswith(INDEX_WRITER)

    def entry(self, name: str) -> SplitEntry:
        """The entry of a split. Raises OptionError naming the known splits."""
        if name not in self.splits:
            raise OptionError(
                f"{self.directory or self.name} has no split "
                f"{name!r}.{did_you_mean(name, self.splits)}"
            )
        return self.splits[name]

    def split(self, name: str) -> SplitEntry:
        """Like entry. Raises EmptySplitError if the split has no records."""
        entry = self.entry(name)
        if not entry.num_records:
            raise EmptySplitError(
                f"split {name!r} of {self.directory or self.name} has no records: nothing to read."
            )
        return entry

    def to_json(self) -> Json:
        """Plain JSON types."""
        return {
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "writer": self.writer,
            "schema": self.schema.to_json(),
            "labels": None if self.labels is None else dataclasses.asdict(self.labels),
            "splits": {name: _entry_json(entry) for name, entry in sorted(self.splits.items())},
        }


def _entry_json(entry: SplitEntry) -> Json:
    """The entry as JSON, without totals where there are none, so that other datasets keep the
    manifests that they always had."""
    fields = dataclasses.asdict(entry)
    if not entry.totals:
        del fields["totals"]
    return fields


@dataclass(frozen=True)
class _Fields:
    """manifest.json, key by key."""

    format_version: int
    name: str
    writer: str
    schema: Schema
    labels: Labels | None
    splits: Mapping[FileName, SplitEntry]


def read_manifest(directory: str, storage: Storage | None = None) -> Manifest:
    """The manifest of a dataset directory. The ManifestError for a missing one describes what is
    there instead."""
    storage = storage or open_storage(directory)
    manifest = find_manifest(directory, storage)
    if manifest is None:
        raise ManifestError(
            f"{join(directory, MANIFEST_FILE)} does not exist: {_instead(storage, directory)}"
        )
    return manifest


def find_manifest(directory: str, storage: Storage) -> Manifest | None:
    """The manifest; None if there is none. Raises ManifestError for one that cannot be read."""
    encoded = read_file(storage, join(directory, MANIFEST_FILE))
    return None if encoded is None else _decoded(encoded, directory)


def _decoded(encoded: bytes, directory: str) -> Manifest:
    file = JsonFile(join(directory, MANIFEST_FILE), ManifestError, _MEND)
    data, _ = unsealed(file, encoded, _EDITED)  # before the version, which may be damaged
    version = data.get("format_version")
    if isinstance(version, int) and version != FORMAT_VERSION:
        raise ManifestError(
            f"{directory}: the manifest has format_version {version!r}; this infeed reads "
            f"{FORMAT_VERSION}. A newer infeed wrote it: upgrade."
        )
    fields = file.typed(data, _Fields)
    for name, text in fields.schema.tfds.items():
        if name.endswith(".json"):
            path = f"{file.path}: the text of schema.tfds[{name!r}]"
            dataclasses.replace(file, path=path).read(text, Json)
    return Manifest(
        fields.name, fields.schema, fields.splits, fields.labels, fields.writer, directory=directory
    )


def _instead(storage: Storage, directory: str) -> str:
    """The likely reason why there is no manifest, and the remedy."""
    with contextlib.suppress(StorageError):
        storage.stat(directory)
        return f"{directory} is a file. Give its directory."
    if storage.list(join(directory, "_shards")):
        return (
            "a conversion into this directory has not finished, or has failed. Run that conversion "
            "again: it resumes."
        )
    if not storage.exists(directory):
        return "there is no such directory. Give the output of a conversion or of infeed index."
    return "no conversion wrote here. Give the output directory of one."


def update_manifest(
    storage: Storage, directory: str, change: Callable[[Manifest | None], Manifest]
) -> None:
    """Replaces the manifest (None if there is none) with the result of `change`. See
    Storage.update."""

    def changed(data: bytes | None) -> bytes:
        manifest = change(None if data is None else _decoded(data, directory))
        return (json.dumps(sealed(manifest.to_json()), indent=1) + "\n").encode()

    storage.update(join(directory, MANIFEST_FILE), changed)
