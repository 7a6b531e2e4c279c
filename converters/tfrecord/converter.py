"""Existing TFRecord files: re-shards their records, copying payloads byte for byte.

`layouts` finds the files, tfds.prepared those of a TFDS dataset. Pure: reads raw data through a Storage, returns
values. Records have no names, so keys consist of split, file and number (naming.record_key)."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from beam_jobs.converter import Converted, Reject, Source
from beam_jobs.references import Reference, References, column
from pipeline.commands.record_checks import payload_problem
from pipeline.errors import RawDataError
from pipeline.shards.frames import FramePlace, payload_of_frame, walk_frames
from pipeline.shards.naming import record_key
from pipeline.shards.record import FOOTER_BYTES, FRAME_BYTES
from pipeline.shards.schema import Labels, Schema
from pipeline.storage.storage import Storage

PayloadCheck = Literal["schema", "none"]
CHECKS: tuple[PayloadCheck, ...] = ("schema", "none")

_ROWS_PER_BATCH = 4096
_MAX_RECORD_BYTES = 2**31 - 1  # the limit of protobuf; a worker has one record in memory


@dataclass(frozen=True)
class TfrecordConverter:
    """name, schema, labels: of the raw dataset. check: "schema" rejects records that do not fit it (~3 us per feature),
    "none" checks only checksums. All records fit an opaque schema."""

    name: str
    schema: Schema
    labels: Labels | None = None
    check: PayloadCheck = "schema"

    transforms = False
    worker_files = ()

    def digest_fields(self) -> Mapping[str, Any]:
        """See Converter. Without labels: records do not contain their names."""
        return {"converter": "tfrecord/1", "check": self.check}

    def scan(self, storage: Storage, source: Source) -> Iterator[References]:
        """See Converter. A source is a file; its tag is the file's name in keys.

        The masked crc32c after each payload is a column, so the plan covers the content, even on a disk. Reading it is
        free: the next header follows it."""
        with storage.open(source.uri) as file:
            places = enumerate(walk_frames(file, source.bytes))
            while batch := list(itertools.islice(places, _ROWS_PER_BATCH)):
                yield _references(source, batch)

    def record_bytes(self, refs: References) -> np.ndarray:
        """See Converter. Exact."""
        return refs.size - FRAME_BYTES

    def convert(self, ref: Reference, data: bytes) -> Converted:
        """See Converter. data: the complete frame. Raises RawDataError if it changed since the scan."""
        if int.from_bytes(data[-FOOTER_BYTES:], "little") != ref.columns["crc"]:
            raise RawDataError(
                f"{ref.file.uri} changed during the conversion. Restore it, or run the same command again to scan the "
                "new version."
            )
        payload, problem = payload_of_frame(data)
        if problem:
            raise Reject(problem)
        if self.check == "schema" and (problem := payload_problem(self.schema, payload)):
            raise Reject(f"{problem} (--schema-file replaces the schema, --check=none accepts every record)")
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
