"""Image folders, one per class: raw images -> records in tensorflow/tpu's schema, with the folder's
name as class.

`layouts` finds the folders. Pure: reads raw data through a Storage, returns values. A label is a
place in the sorted list of all folder names, from 1 (0 is background)."""

import contextlib
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from beam_jobs.converter import Converted, Reject, Source
from beam_jobs.rows.references import File, Reference, References
from converters.images import image_records
from converters.images.image_archives import class_files
from converters.raw.class_names import names_digest, position
from converters.raw.files import files_below
from converters.raw.splits import HeldOut, is_of
from converters.raw.tars import Member
from converters.raw.zips import ZipMember, unpacked
from pipeline.raw.image_files import ToJpeg
from pipeline.raw.jpeg import Jpeg
from pipeline.shards.example import encode_example
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Storage, join

_LABEL_BASE = 1
_Grouped = tuple[str, str, str, File, Member]  # class, place, what decides the split, where it is

SCHEMA = Schema(
    "image_folder",
    {
        **image_records.IMAGE_FEATURES,
        "image/class/text": Feature("bytes", content="text", doc="the class: its folder's name"),
    },
)


@dataclass(frozen=True)
class ImageFolderConverter:
    """The converter of image folders. classes: of all splits, sorted. held_out: None if each split
    has its own folders."""

    classes: tuple[str, ...]
    held_out: HeldOut | None = None
    to_jpeg: ToJpeg = field(default_factory=ToJpeg)

    name = "image_folder"
    transforms = True
    worker_files = ()

    @property
    def schema(self) -> Schema:
        return replace(SCHEMA, upright=self.to_jpeg.apply_orientation)

    def core_seconds_per_gb(self, name: str) -> float:
        """See Converter."""
        return self.to_jpeg.core_seconds_per_gb(name)

    @property
    def labels(self) -> Labels:
        return Labels("image/class/label", _LABEL_BASE, self.classes)

    def digest_fields(self) -> Mapping[str, Any]:
        """See Converter. Without the fraction: the rows of a split already depend on it."""
        return {
            "converter": "image_folder/2",
            "classes": names_digest(self.classes),
            **asdict(self.to_jpeg),
        }

    def scan(self, storage: Storage, source: Source) -> Iterator[References]:
        """See Converter. A source is the folder of a class; without a tag, the folder of class
        folders, for files next to these; or an archive of class folders."""
        return image_records.in_batches(self._rows(storage, source))

    def _rows(self, storage: Storage, source: Source) -> Iterator[Reference]:
        for class_name, place, group, file, member in self._grouped(storage, source):
            if is_of(source.split, group, self.held_out, class_name):
                row = self._reference(f"{source.split}/{place}", class_name, file, member)
                yield _zipped(row, member) if source.kind == "zip" else row

    def _grouped(self, storage: Storage, source: Source) -> Iterator[_Grouped]:
        by = self.held_out.by if self.held_out else ""
        files = _files(storage, source)
        contents = iter(())
        if by == "content":
            files, again = itertools.tee(files)
            contents = storage.read_ranges(
                (file.uri, member.offset, _span(member))
                for _, file, member in again
                if not image_records.member_error(member)
            )
        for class_name, file, member in files:
            place = f"{class_name}/{member.name}" if class_name else member.name
            group = place
            if by == "content" and not image_records.member_error(member):
                data = _unpacked(member, next(contents))
                group = hashlib.blake2b(data, digest_size=16).hexdigest()
            elif self.held_out and class_name:
                group = self.held_out.group_of(place)
            yield class_name, place, group, file, member

    def stratified(self, sources: Sequence[Source]) -> "ImageFolderConverter":
        """The converter that holds out the same share of each class."""
        assert self.held_out
        units = {(each.uri, each.tag): each for each in sources}.values()
        every = (each for unit in units for each in self._grouped(open_storage(unit.uri), unit))
        pairs = ((class_name, group) for class_name, _, group, *_ in every if class_name)
        return replace(self, held_out=self.held_out.stratified(pairs))

    def _reference(self, key: str, class_name: str, file: File, member: Member) -> Reference:
        error = (
            image_records.member_error(member)
            if class_name
            else "a file beside the class folders: it has no class"
        )
        label = _LABEL_BASE + position(self.classes, class_name) if not error else 0
        columns = {"label": label, "class": class_name.encode()}
        return Reference(key, file, member.offset, member.size, error, columns)

    def record_bytes(self, refs: References) -> np.ndarray:
        """See Converter. Exact for images that stay as they are; for others, uses the original
        size."""
        sizes = refs.columns.get("unpacked_bytes", refs.size)
        return image_records.predicted_bytes(_BYTES_AROUND, refs, "class") + sizes - refs.size

    def convert(self, ref: Reference, data: bytes) -> Converted:
        if "unpacked_bytes" in ref.columns:
            data = unpacked(data, ref.number("unpacked_bytes"), ref.number("crc32"))
        image = self.to_jpeg(data)
        features = _features(image, ref.key, ref.text("class"), ref.number("label"))
        return Converted(features, image.fixups, image.notes, content=data)


def _files(storage: Storage, source: Source) -> Iterator[tuple[str, File, Member]]:
    """The files of a source, as (class or "", file to read, member with its path in the class's
    folder)."""
    if source.kind != "folder":
        for class_name, member in class_files(source):
            yield class_name, source.file, member
        return
    for name, stat in files_below(storage, source.uri, lambda _: bool(source.tag)):
        file = File(join(source.uri, name), stat)
        yield source.tag, file, Member(name, 0, stat.bytes, "file")


def _zipped(row: Reference, member: Member) -> Reference:
    """The row with the span to read, and with the numbers that `unpacked` needs."""
    crc32 = member.crc32 if isinstance(member, ZipMember) else 0
    columns = {**row.columns, "unpacked_bytes": member.size, "crc32": crc32}
    return replace(row, size=_span(member), columns=columns)


def _span(member: Member) -> int:
    return member.span if isinstance(member, ZipMember) else member.size


def _unpacked(member: Member, data: bytes) -> bytes:
    """The content of a member; its packed bytes if they are damaged."""
    if isinstance(member, ZipMember):
        with contextlib.suppress(Reject):
            return unpacked(data, member.size, member.crc32)
    return data


def _features(image: Jpeg, key: str, class_name: bytes, label: int) -> dict[str, bytes | int]:
    return {
        **image_records.image_features(image, key),
        "image/class/label": label,
        "image/class/text": class_name,
    }


_BYTES_AROUND = len(encode_example(SCHEMA, _features(Jpeg(b"", 300, 400), "", b"", 300)))
