"""Existing TFRecord files: finds them and their schema, and re-shards their records byte for byte:

    a directory of ours      manifest.json lists the files and has schema and labels
    files by name            see pipeline.sources.named_splits; uses TFDS's JSON files
    files by pattern         split=glob, for all others

Files that TensorFlow compressed (GZIP and ZLIB, recognized by content) are uncompressed to scratch
first.

Records have no names, so keys consist of split, file and number (naming.record_key)."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from beam_jobs.converter import Converted, Reject, Source
from beam_jobs.rows.references import Reference, References, column
from beam_jobs.scratch import Scratch, read_compressed, readable
from converters.raw.files import open_raw_data
from converters.raw.splits import chosen
from pipeline.errors import OptionError, RawDataError
from pipeline.shards.frames import (
    FOOTER_BYTES,
    FRAME_BYTES,
    HEADER_BYTES,
    Frame,
    FramePlace,
    compression_of,
    payload_of_frame,
    read_frames,
    walk_frames,
)
from pipeline.shards.manifest import Manifest, read_manifest
from pipeline.shards.naming import MANIFEST_FILE, record_key
from pipeline.shards.schema import PASSED_ON, Labels, Schema
from pipeline.sources.merged_schemas import SchemaGuess, read_schema
from pipeline.sources.named_splits import (
    Files,
    files_by_name,
    files_by_pattern,
    kept_of_tfds,
    tfds_files,
    tfds_labels,
)
from pipeline.sources.record_checks import payload_problem
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import Stat, Storage, in_parallel, join

SAMPLED_FILES, SAMPLED_RECORDS = 8, 32  # files per split, evenly spaced; their first records
_PIECE_BYTES = 1 << 18
# per record, in memory; the sample of a file ends before a larger record
_MAX_SAMPLED_BYTES = 1 << 28
PayloadCheck = Literal["schema", "none"]
CHECKS: tuple[PayloadCheck, ...] = ("schema", "none")
_ROWS_PER_BATCH = 4096
_MAX_RECORD_BYTES = 2**31 - 1  # the limit of protobuf; a worker has one record in memory


def find_raw(
    raw_data_dir: str,
    splits: Sequence[str],
    patterns: Sequence[tuple[str, str]],
    scratch: Scratch | None,
    schema_file: str | None = None,
) -> tuple["TfrecordConverter", Sequence[Source]]:
    """The dataset's converter, and the sources of the chosen splits, or of all splits that exist.

    scratch: for compressed files, None forbids writing. schema_file: replaces the schema that is
    found, or inferred from a sample of the records. Raises RawDataError if something is missing,
    OptionError."""
    storage = open_raw_data(raw_data_dir)
    listed = storage.list(raw_data_dir)
    manifest = read_manifest(raw_data_dir, storage) if MANIFEST_FILE in listed else None
    if patterns:
        files = files_by_pattern(storage, raw_data_dir, patterns)
    elif manifest:
        files = _of_manifest(manifest, listed)
    else:
        files = files_by_name(raw_data_dir, listed)
    if schema_file:
        schema = read_schema(schema_file)
    elif manifest:
        schema = replace(manifest.schema, name=PASSED_ON)
    else:
        schema = infer_schema(storage, raw_data_dir, files)
    sources = sources_of(raw_data_dir, chosen_files(raw_data_dir, files, splits), scratch)
    if manifest:
        return TfrecordConverter(manifest.name, schema, manifest.labels), sources
    tfds = tfds_files(storage, raw_data_dir, listed)
    name = json.loads(tfds.get("dataset_info.json", "{}")).get("name")
    schema = replace(schema, tfds=kept_of_tfds(tfds))
    return TfrecordConverter(str(name or "tfrecord"), schema, tfds_labels(tfds)), sources


def _same_place(one: str, other: str) -> bool:
    if is_remote(one) or is_remote(other):
        return one.rstrip("/") == other.rstrip("/")
    return Path(one).resolve() == Path(other).resolve()


def _of_manifest(manifest: Manifest, listed: Mapping[str, Stat]) -> Files:
    """The files in the manifest. A wrong size or checksum is an error now, not a short split
    later."""
    files: dict[str, dict[str, Stat]] = {}
    for split, entry in manifest.splits.items():
        for shard in entry.shards:
            if problem := shard.problem(listed.get(shard.file)):
                raise RawDataError(
                    f"{join(manifest.directory, shard.file)} {problem}. Copy it again, or give "
                    "--pattern to ignore the manifest."
                )
            files.setdefault(split, {})[shard.file] = listed[shard.file]
    return files


def chosen_files(raw_data_dir: str, files: Files, splits: Sequence[str]) -> Files:
    """The files of the chosen splits, or of all splits. Raises RawDataError, OptionError."""
    if not files:
        raise RawDataError(
            f"{raw_data_dir} has no files with names of TFRecord files of a split "
            "(train-00000-of-00010, imagenet2012-train.tfrecord-00000-of-00016, train.tfrecord, "
            "...). Name them: --pattern train=PATTERN."
        )
    return {split: files[split] for split in chosen(raw_data_dir, splits, files)}


def sources_of(directory: str, files: Files, scratch: Scratch | None) -> Sequence[Source]:
    """A source for each file. Raises RawDataError; OptionError also if the output would replace raw
    files."""
    paths = itertools.chain.from_iterable(files.values())
    folders = {directory, *(join(directory, path).rpartition("/")[0] or "/" for path in paths)}
    if scratch and any(_same_place(folder, scratch.output_dir) for folder in folders):
        raise OptionError(
            f"--output={scratch.output_dir} is the directory of the raw data: shards and "
            "dataset_info.json would replace raw files. Give another directory."
        )
    places = [(split, path, stat) for split, named in files.items() for path, stat in named.items()]
    sources = in_parallel(lambda place: _source(directory, *place, scratch), places)
    for split in files:
        # a shard reads from one
        if len({is_remote(source.uri) for source in sources if source.split == split}) > 1:
            raise OptionError(
                f"some files of {split!r} are compressed and some are not, so they would be read "
                f"from {directory} and from {scratch.output_dir if scratch else directory}. Give "
                "an output directory in the same storage."
            )
    return sources


def _source(directory: str, split: str, path: str, stat: Stat, scratch: Scratch | None) -> Source:
    uri = join(directory, path)
    begin = [(uri, 0, min(HEADER_BYTES, stat.bytes))] if stat.bytes else ()
    compression = compression_of(b"".join(open_storage(uri).read_ranges(begin)))
    if compression:
        return replace(readable(uri, scratch, split, compression), tag=path, kind="file")
    return Source(split, uri, stat, bytes=stat.bytes, tag=path, kind="file")


def infer_schema(storage: Storage, directory: str, files: Files) -> Schema:
    """The schema of a sample: the first 32 records of up to 8 files of each split, evenly spaced.

    Samples all splits, so that one converted later gets the same schema. The schema is opaque if
    any record is not a tf.train.Example. Raises SchemaError for a feature of two kinds."""
    guess = SchemaGuess()
    for named in files.values():
        paths = [join(directory, path) for path, stat in named.items() if stat.bytes]
        count = min(SAMPLED_FILES, len(paths))
        for i in range(count):
            frames = _frames(storage, paths[i * len(paths) // count])
            for frame in itertools.islice(frames, SAMPLED_RECORDS):
                if not frame.problem:
                    guess.add(frame.payload)
    return guess.schema or Schema(PASSED_ON, {})


def _frames(storage: Storage, path: str) -> Iterator[Frame]:
    with storage.open(path) as file:
        compression = compression_of(file.read(HEADER_BYTES))
        file.seek(0)
        content = (
            read_compressed(file, compression, path)
            if compression
            else iter(lambda: file.read(_PIECE_BYTES), b"")
        )
        yield from read_frames(content, None, _MAX_SAMPLED_BYTES)


@dataclass(frozen=True)
class TfrecordConverter:
    """The converter of TFRecord files. name, schema, labels: of the raw dataset. check: "schema"
    rejects records that do not fit it (~3 us per feature), "none" checks only checksums. All
    records fit an opaque schema."""

    name: str
    schema: Schema
    labels: Labels | None = None
    check: PayloadCheck = "schema"

    transforms = False
    worker_files = ()

    def core_seconds_per_gb(self, _name: str) -> float:
        """See Converter."""
        return 0

    def digest_fields(self) -> Mapping[str, Any]:
        """See Converter. Without labels: records do not contain their names."""
        return {"converter": "tfrecord/1", "check": self.check}

    def scan(self, storage: Storage, source: Source) -> Iterator[References]:
        """See Converter. A source is a file; its tag is the file's name in keys.

        The masked crc32c after each payload is a column, so the plan covers the content, even on a
        disk. Reading it is free: the next header follows it."""
        with storage.open(source.uri) as file:
            places = enumerate(walk_frames(file, source.bytes))
            while batch := list(itertools.islice(places, _ROWS_PER_BATCH)):
                yield _references(source, batch)

    def record_bytes(self, refs: References) -> np.ndarray:
        """See Converter. Exact."""
        return refs.size - FRAME_BYTES

    def convert(self, ref: Reference, data: bytes) -> Converted:
        """See Converter. data: the complete frame. Raises RawDataError if it changed since the
        scan."""
        if int.from_bytes(data[-FOOTER_BYTES:], "little") != ref.columns["crc"]:
            raise RawDataError(
                f"{ref.file.uri} changed during the conversion. Restore it, or run the same "
                "command again to scan the new version."
            )
        payload, problem = payload_of_frame(data)
        if problem:
            raise Reject(problem)
        if self.check == "schema" and (problem := payload_problem(self.schema, payload)):
            raise Reject(
                f"{problem} (--schema-file replaces the schema, --check=none accepts every record)"
            )
        return Converted(payload)


def _references(source: Source, batch: Sequence[tuple[int, FramePlace]]) -> References:
    numbers, places = zip(*batch, strict=True)
    return References.in_file(
        source.file,
        key=column(record_key(source.split, source.tag, number) for number in numbers),
        offset=np.array([place.offset for place in places], np.int64),
        size=np.array([place.length + FRAME_BYTES for place in places], np.int64),
        error=column(place.problem or _too_large(place) for place in places),
        columns={"crc": np.array([place.stored_crc for place in places], np.int64)},
    )


def _too_large(place: FramePlace) -> str:
    if place.length <= _MAX_RECORD_BYTES:
        return ""
    return f"a record of {place.length:,} bytes; allowed are up to {_MAX_RECORD_BYTES:,}"
