"""Verifies a split: reads every byte and reports whatever disagrees with the manifest, index or
schema.

verify prints the problems. Memory is a few MB per thread, however large the split."""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import google_crc32c

from pipeline.commands.dataset_facts import text_problem
from pipeline.errors import SchemaError, ShardError, StorageError
from pipeline.shards import sidecars
from pipeline.shards.example_decoding import decode_example, example_shapes
from pipeline.shards.frames import read_frames
from pipeline.shards.manifest import Manifest
from pipeline.shards.naming import (
    MANIFEST_FILE,
    add_digests,
    index_file,
    key_digest,
    parts_file,
    rejects_file,
    shard_pattern,
)
from pipeline.shards.rejects import ledger_problem
from pipeline.shards.schema import PASSED_ON
from pipeline.shards.sidecar_check import sidecar_problems
from pipeline.shards.split_index import SplitIndex, find_parts, load_index
from pipeline.sources.indexed_records import key_of
from pipeline.sources.named_splits import tfds_leaves
from pipeline.sources.record_checks import image_problem, label_problems, schema_problems
from pipeline.storage.storage import Listing, Stat, Storage, files_at_once, join, pieces_of
from pipeline.tokenizers import TEXT_FILE

PIECE_BYTES = 4 * 1024**2


# changed: other bytes than those converted or indexed. as converted: the same bytes, but wrong, so
# a new copy does not help. stray: an extra file. sidecar: a file for TFDS that disagrees with the
# manifest.
Cause = Literal["changed", "as converted", "stray", "sidecar"]


class Problem(NamedTuple):
    """One damaged thing."""

    where: str  # the file; for a record also its number in the shard and its offset
    what: str
    cause: Cause = "changed"  # decides the repair

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass
class _Findings:
    """The content of a shard, or of all shards of a split.

    numbers: "records" with intact bytes, "keys" of records that contain theirs, and the "digest" of
        these keys.
    totals: of features whose totals the manifest states."""

    numbers: Counter[str] = field(default_factory=Counter)
    labels: Counter[int] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)

    @property
    def records(self) -> int:
        """Records with intact bytes."""
        return self.numbers["records"]


def check_sidecars(storage: Storage, manifest: Manifest) -> Iterator[Problem]:
    """Problems of the files next to the shards, and files that no conversion wrote but that TFDS
    would read."""
    if what := text_problem(manifest):
        yield Problem(join(manifest.directory, TEXT_FILE), what)
    if not sidecars.has_sidecars(manifest):
        return
    for path, what in sidecar_problems(storage, manifest):
        yield Problem(path, what, "sidecar")
    known = sidecars.sidecar_texts(manifest)
    keys = [key for key, kind in tfds_leaves(known) if kind == "classLabel"]
    taken = {sidecars.labels_file(key): f"the class names of {key}" for key in keys} | {
        sidecars.METADATA_FILE: "info.metadata"
    }
    for name in sorted(storage.list(manifest.directory)):
        if name in taken and name not in known:
            what = f"is not in the manifest, but TFDS reads {taken[name]} from it"
            yield Problem(join(manifest.directory, name), what, "stray")


@dataclass(kw_only=True)
class SplitVerifier(_Findings):
    """The proof of one split: `problems()` reads it; afterwards the other fields hold the findings.

    decode: also decode every image. read: called with the number of bytes read."""

    storage: Storage
    manifest: Manifest
    split: str
    decode: bool
    read: Callable[[int], object]

    def __post_init__(self) -> None:
        self.entry = self.manifest.splits[self.split]
        self.index: SplitIndex | None = None
        self._listed: Listing = {}

    def problems(self) -> Iterator[Problem]:
        """Yields all damage as it is found, in shard order. Call it once."""
        directory = self.manifest.directory
        index = join(directory, index_file(self.split))
        try:
            self.index = load_index(self.storage, directory, self.split, self.entry, check_all=True)
        except (ShardError, StorageError) as e:
            yield Problem(index, str(e).removeprefix(f"{index} "))
        parts = join(directory, parts_file(self.split))
        # an index that is small, or was written by an older infeed, has none
        if self.index is not None and self.storage.exists(parts):
            columns = find_parts(self.storage, directory, self.split, self.entry)
            if columns is None or (columns != self.index.parts).any():
                yield Problem(parts, "is damaged or belongs to another index")
        self._listed = self.storage.list(directory)
        yield from self._strays()
        if what := ledger_problem(self.storage, directory, self.split, self.entry.rejected):
            yield Problem(join(directory, rejects_file(self.split)), what)
        pool = ThreadPoolExecutor(files_at_once(self.storage), thread_name_prefix="infeed-verify")
        try:
            for of_shard, problems in pool.map(self._prove, range(len(self.entry.shards))):
                self.numbers.update(of_shard.numbers)
                self.labels.update(of_shard.labels)
                self.totals.update(of_shard.totals)
                yield from problems
        finally:
            pool.shutdown(cancel_futures=True)
        if self.records == self.entry.num_records and (what := self._wrong_total()):
            yield Problem(join(directory, MANIFEST_FILE), what)
        if self.key_verdict == "wrong":
            what = (
                f"key_digest of {self.split!r} is {self.entry.key_digest}, its records have "
                f"{self._key_digest}"
            )
            yield Problem(join(directory, MANIFEST_FILE), what)

    def _wrong_total(self) -> str:
        for name in sorted(self.entry.totals.keys() & self.manifest.schema.features.keys()):
            if self.totals[name] != self.entry.totals[name]:
                return (
                    f"total {name} of {self.split!r} is {self.entry.totals[name]}, its records "
                    f"have {self.totals[name]}"
                )
        return ""

    @property
    def key_verdict(self) -> str:
        """Whether the key digest is proven, wrong, not kept or unknown."""
        if self.records != self.entry.num_records:
            return "unknown"  # the digest of the remaining records proves nothing
        if self.numbers["keys"] < self.records:
            return "not kept"
        return "proven" if self._key_digest == self.entry.key_digest else "wrong"

    @property
    def _key_digest(self) -> str:
        return f"{add_digests([self.numbers['digest']]):032x}"

    def _strays(self) -> Iterator[Problem]:
        """Shards that are not in the manifest."""
        ours = {shard.file for shard in self.entry.shards}
        name = shard_pattern(self.split, self.manifest.schema.files)
        for file in sorted(self._listed):
            if name.fullmatch(file) and file not in ours:
                what = "is not in the manifest, but readers that match file names read it"
                yield Problem(join(self.manifest.directory, file), what, "stray")

    def _prove(self, number: int) -> tuple[_Findings, list[Problem]]:
        findings = _Findings()
        problems = list[Problem]()
        shard = self.entry.shards[number]
        path = join(self.manifest.directory, shard.file)
        listed = self._listed.get(shard.file)
        if listed is None:
            problems.append(Problem(path, f"is missing, with its {shard.records:,} records"))
            return findings, problems
        checksum = google_crc32c.Checksum()
        try:
            pieces = pieces_of(
                self.storage, path, listed.bytes, PIECE_BYTES, checksum, read=self.read
            )
            rows = None if self.index is None else self.index.shard_rows(number)
            for frame in read_frames(pieces, rows):
                where = f"{path}, record {frame.record} at byte {frame.offset}"
                if frame.problem:
                    problems.append(Problem(where, frame.problem))
                    continue
                findings.numbers["records"] += 1
                if inside := "; ".join(self._problems_inside(findings, frame.payload)):
                    problems.append(Problem(where, inside, "as converted"))
            for _ in pieces:  # the bytes after the last record
                pass
        except StorageError as e:
            problems.append(Problem(path, str(e)))
            return findings, problems
        computed = Stat(listed.bytes, int.from_bytes(checksum.digest(), "big"))
        ours = Stat(shard.bytes, shard.crc32c)
        if computed != ours:
            problems.append(Problem(path, f"has {computed}, the manifest says {ours}"))
        elif self.index is None and findings.records != shard.records and not problems:
            what = f"has {findings.records} records, the manifest says {shard.records}"
            problems.append(Problem(path, what))
        return findings, problems

    def _problems_inside(self, findings: _Findings, payload: bytes) -> Iterator[str]:
        schema = self.manifest.schema
        labels = self.manifest.labels
        if schema.opaque:
            return
        try:
            shapes = example_shapes(payload)
            values = decode_example(payload)
        except SchemaError as e:
            yield str(e).rstrip(".")
            return
        yield from schema_problems(schema, shapes)
        if labels:
            yield from label_problems(labels, values)
            findings.labels.update(labels.of(values))
        for name in self.entry.totals:
            findings.totals[name] += sum(
                number for number in values.get(name, ()) if isinstance(number, int)
            )
        key = None if schema.name == PASSED_ON else key_of(self.manifest.name, self.split, values)
        if key is not None:
            findings.numbers.update(keys=1, digest=key_digest([key]))
        for name, feature in schema.features.items() if self.decode else ():
            for data in values.get(name, ()) if feature.content == "image" else ():
                problem = image_problem(data) if isinstance(data, bytes) else ""
                if problem:
                    yield f"{name!r}: {problem}"
