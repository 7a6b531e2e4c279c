"""The manifest: what a dataset directory holds. Written last, so its word is that the split is complete.

One entry a split; finished splits are merged in, so a validation split may join a train split days later."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pipeline.shards.errors import EmptySplitError, ManifestError, OptionError, StorageError, did_you_mean
from pipeline.shards.naming import MANIFEST_FILE
from pipeline.shards.schema import Labels, Schema
from pipeline.shards.schemes import open_storage
from pipeline.shards.sealed import CHECKSUM, checksum_of, sealed
from pipeline.shards.storage import Storage, join
from pipeline.shards.typed_json import Count, JsonFile, NonEmpty

__all__ = [
    "FORMAT_VERSION",
    "INDEX_WRITER",
    "Manifest",
    "ShardEntry",
    "SplitEntry",
    "find_manifest",
    "read_manifest",
    "update_manifest",
]

FORMAT_VERSION = 1
INDEX_WRITER = "infeed index"  # how `writer` begins where the shards were found, not written
_MEND = "Copy it again; or delete it and run what wrote it again for all its splits: shards that are finished stay."


@dataclass(frozen=True)
class ShardEntry:
    """One shard file: its name, and what it must hold to be that shard."""

    file: str
    records: Count
    bytes: Count
    crc32c: Count  # of the whole file


@dataclass(frozen=True)
class SplitEntry:
    """One finished split."""

    shards: NonEmpty[ShardEntry]
    index_crc32c: Count  # of the index file
    plan_digest: str  # the conversion plan that wrote it
    key_digest: str  # order-free digest of the records' keys
    seed: int  # of the order in the shards
    rejected: Count = 0  # inputs that could not be converted; the ledger lists them
    fixups: Mapping[str, int] = field(default_factory=dict)  # records that were re-encoded, by kind
    sources: Mapping[str, int] = field(default_factory=dict)  # inventory of what was read: {"inputs", "bytes"}

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
        """32 hex digits that name the data: from shard names, sizes and checksums alone.

        A copied dataset has the same one, whatever its path, owner or times."""
        lines = (f"{s.file} {s.records} {s.bytes} {s.crc32c:08x}\n" for s in self.shards)
        return hashlib.blake2b("".join(lines).encode(errors="surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Manifest:
    """A dataset: its schema, labels and finished splits."""

    name: str
    schema: Schema
    splits: Mapping[str, SplitEntry]
    labels: Labels | None = None
    writer: str = ""  # the program and version that wrote it
    directory: str = ""  # where it was read from; not stored

    def split(self, name: str) -> SplitEntry:
        """The entry of a split. Raises OptionError naming the known splits, EmptySplitError if it has no records."""
        if name not in self.splits:
            raise OptionError(f"{self.directory or self.name} has no split {name!r}.{did_you_mean(name, self.splits)}")
        entry = self.splits[name]
        if not entry.num_records:
            raise EmptySplitError(f"split {name!r} of {self.directory or self.name} has no records: nothing to read.")
        return entry

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "writer": self.writer,
            "schema": self.schema.to_json(),
            "labels": None if self.labels is None else dataclasses.asdict(self.labels),
            "splits": {name: dataclasses.asdict(entry) for name, entry in sorted(self.splits.items())},
        }

    @staticmethod
    def from_json(data: Mapping[str, Any], directory: str = "") -> "Manifest":
        """The inverse of to_json. Raises ManifestError for another version, or a key or value that does not fit."""
        file = _file(directory)
        version = data.get("format_version")
        if isinstance(version, int) and version != FORMAT_VERSION:
            raise ManifestError(
                f"{directory}: the manifest has format_version {version!r}; this infeed reads {FORMAT_VERSION}. "
                "A newer infeed wrote it: upgrade."
            )
        fields = file.typed(data, _Fields)
        for name, text in fields.schema.tfds.items():
            if name.endswith(".json"):
                inside = dataclasses.replace(file, path=f"{file.path}: the text of schema.tfds[{name!r}]")
                inside.read(text, dict[str, Any])
        return Manifest(fields.name, fields.schema, fields.splits, fields.labels, fields.writer, directory)


@dataclass(frozen=True)
class _Fields:
    """manifest.json, key by key."""

    format_version: int
    name: str
    writer: str
    schema: Schema
    labels: Labels | None
    splits: Mapping[str, SplitEntry]
    checksum: str = ""


def _file(directory: str) -> JsonFile:
    return JsonFile(join(directory, MANIFEST_FILE), ManifestError, _MEND)


def read_manifest(directory: str, storage: Storage | None = None) -> Manifest:
    """The manifest of a dataset directory. Raises ManifestError saying what is there instead."""
    storage = storage or open_storage(directory)
    manifest = find_manifest(directory, storage)
    if manifest is None:
        raise ManifestError(f"{join(directory, MANIFEST_FILE)} does not exist: {_instead(storage, directory)}")
    return manifest


def find_manifest(directory: str, storage: Storage) -> Manifest | None:
    """The manifest, if there is one. Raises ManifestError for one that cannot be read."""
    path = join(directory, MANIFEST_FILE)
    return _decoded(storage.read(path), directory) if storage.exists(path) else None


def _decoded(encoded: bytes, directory: str) -> Manifest:
    file = _file(directory)
    path, data = file.path, file.parse(encoded)
    if not isinstance(data, dict):
        raise ManifestError(f"{path} holds a {type(data).__name__}, not a manifest.")
    # First of all, so that damage is told from another version.
    if CHECKSUM in data and data[CHECKSUM] != (there := checksum_of(data)):
        raise ManifestError(
            f"{path} has the checksum {data[CHECKSUM]!r}, its fields give {there!r}: it is damaged. {_MEND} If you "
            f"changed it on purpose, take the field {CHECKSUM!r} out of it."
        )
    return Manifest.from_json(data, directory)


def _instead(storage: Storage, directory: str) -> str:
    """Why there is no manifest, as far as one can see, and what to do."""
    if _is_file(storage, directory):
        return f"{directory} is a file. Give the directory that it is in."
    if storage.list(join(directory, "_shards")):
        return "a conversion into this directory has not finished. Run the same command again: it goes on."
    if not storage.exists(directory):
        return "there is no such directory. Give the one that a conversion or python -m pipeline.index wrote."
    return "no conversion wrote here. Give the directory that was its output."


def _is_file(storage: Storage, path: str) -> bool:
    try:
        return bool(storage.stat(path))
    except StorageError:
        return False


def update_manifest(storage: Storage, directory: str, change: Callable[[Manifest | None], Manifest]) -> None:
    """Publishes what `change` makes of the manifest (None: there is none). See Storage.update."""

    def changed(there: bytes | None) -> bytes:
        fields = change(None if there is None else _decoded(there, directory)).to_json()
        return (json.dumps(sealed(fields), indent=1) + "\n").encode()

    storage.update(join(directory, MANIFEST_FILE), changed)
