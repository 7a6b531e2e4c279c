"""What every converter must hold, one row a layout of raw data: a new source is a new row."""

import dataclasses
import gzip
import os
import pickle
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from sweep import SWEEP

from beam_jobs.conversion_job import ConversionJob
from beam_jobs.converter import Converter, Source
from beam_jobs.launch import launch
from beam_jobs.options import beam_options
from beam_jobs.references import concat
from beam_jobs.scratch import Scratch
from converters.cifar.converter import CifarConverter
from converters.cifar.layouts import find_cifar
from converters.idx.converter import IdxConverter
from converters.idx.layouts import find_idx
from converters.image_folder.converter import ImageFolderConverter
from converters.image_folder.layouts import find_folders
from converters.imagenet.converter import ImagenetConverter
from converters.imagenet.layouts import find_raw
from converters.imagenet.synsets import read_synsets
from converters.images.image_files import ToJpeg
from converters.raw.class_names import read_class_names
from converters.table.images import ImageTableConverter
from converters.table.layouts import find_classes, find_tables
from converters.table.targets import MultiLabel, Numbers, SingleLabel, Unlabelled
from converters.table.texts import TextTableConverter
from converters.tfds import prepared
from converters.tfrecord import layouts
from converters.tfrecord.converter import TfrecordConverter
from pipeline.shards.example import encode_example
from pipeline.shards.example_decoding import decode_example
from pipeline.shards.manifest import read_manifest
from pipeline.shards.record import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, frame
from pipeline.shards.schema import Labels
from pipeline.storage.schemes import open_storage

SHARDS = {"train": 3, "validation": 2}
without_beam = pytest.mark.usefixtures("without_beam")


@dataclass(frozen=True)
class Row:
    """find: what a directory of raw data becomes. changes: fields of the converter that change bytes.

    passed_on: of raw data that are records already, those that are intact; None where records are encoded here.
    beside: files that a layout allows beside its own; hidden ones are allowed by all."""

    find: Callable[[str], tuple[Converter, tuple[Source, ...]]]
    changes: tuple[dict[str, Any], ...]
    shards: Mapping[str, int] = field(default_factory=lambda: SHARDS)
    passed_on: Callable[[Path], list[bytes]] | None = None
    beside: tuple[str, ...] = ("readme.html",)


def find_imagenet(directory):
    synsets = tuple(read_synsets(open_storage(directory), f"{directory}/synsets.txt"))
    raw = find_raw(directory, ["train", "validation"], synsets, None)
    return ImagenetConverter(synsets, raw.validation_labels), raw.sources


def find_image_folder(fraction):
    def find(directory):
        raw = find_folders(directory, [], fraction)
        return ImageFolderConverter(raw.classes, fraction), raw.sources

    return find


def find_mnist(directory):
    raw = find_idx(directory, [], None, Scratch(f"{directory}-scratch"))
    names = read_class_names(open_storage(directory), f"{directory}/digits.txt")
    return IdxConverter(names, raw.labels), raw.sources


def find_either_cifar(directory):
    raw = find_cifar(directory, [], Scratch(f"{directory}-scratch"))
    return CifarConverter(raw.names, raw.coarse_names), raw.sources


def find_tfrecords(directory):
    raw = layouts.find_raw(directory, [], [], Scratch(f"{directory}-scratch"))
    return TfrecordConverter(raw.name, raw.schema, Labels("label", 0, ("a", "b", "c"))), raw.sources


def find_tiny(directory):
    raw = prepared.find_tfds(prepared.DatasetName("tiny"), directory, [], None)
    return TfrecordConverter(raw.name, raw.schema, raw.labels), raw.sources


def intact_payloads(directory):
    found = []
    for path in (path for path in directory.rglob("*") if "tfrecord" in path.name):
        data, at = path.read_bytes(), 0
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        while at < len(data):
            end = at + FRAME_BYTES + int.from_bytes(data[at : at + 8], "little")
            payload = data[at + HEADER_BYTES : end - FOOTER_BYTES]
            found += [payload] if data[at:end] == frame(payload) else []
            at = end
    return found


def find_image_tables(directory):
    tables = find_tables(directory, [], None)
    classes = find_classes(tables.paths, "animal", None, None)
    target = SingleLabel("animal", classes, "image/class/label", 1, "image/class/text")
    return ImageTableConverter("file", target), tables.sources


def find_text_tables(directory):
    tables = find_tables(directory, [], 0.3)
    target = MultiLabel("about", find_classes(tables.paths, "about", "|", None))
    return TextTableConverter("text", target, validation_fraction=0.3), tables.sources


IMAGENET = ({"synsets": ("n1",)}, {"verify": "decode"}, {"words": ("tench",)})
IMAGE_FOLDER = (
    {"classes": ("cat",)},
    *({"to_jpeg": to} for to in (ToJpeg("decode"), ToJpeg(max_side=9), ToJpeg("end", None, True), ToJpeg(quality=90))),
)
IDX = ({"names": ("0", "one")}, {"transpose": True})
IMAGE_TABLES = (
    *({"target": SingleLabel(*animal)} for animal in (("kind", ("cat", "dog")), ("animal", ("cat",)))),
    *({"target": target} for target in (Numbers(("weight",)), Unlabelled())),
    *({"column": "note"}, {"key_column": "note"}, {"delimiter": ";"}),
)
TEXT_TABLES = tuple({"target": MultiLabel(*about)} for about in (("kind", ("x",)), ("about", ("x", "y", "z"), ",")))
CIFAR = ({"names": ("cat",)}, {"coarse_names": ("animal",)})
CONVERTERS = {
    "imagenet tars": Row(find_imagenet, IMAGENET),
    "imagenet folders": Row(find_imagenet, IMAGENET),
    "image folder by split": Row(find_image_folder(None), IMAGE_FOLDER),
    "image folder archives": Row(find_image_folder(None), IMAGE_FOLDER),
    "image folder": Row(find_image_folder(0.3), IMAGE_FOLDER, beside=()),
    "csv of images": Row(find_image_tables, (*IMAGE_TABLES, *IMAGE_FOLDER[1:])),
    "jsonl of texts": Row(find_text_tables, TEXT_TABLES),
    "idx": Row(find_mnist, IDX, {"train": 3, "test": 2}),
    "cifar-10 archive": Row(find_either_cifar, CIFAR, {"train": 3, "test": 2}),
    "cifar-100 folder": Row(find_either_cifar, CIFAR, {"train": 3, "test": 2}),
    "tfds": Row(find_tiny, ({"check": "none"},), passed_on=intact_payloads),
    "tfrecord": Row(find_tfrecords, ({"check": "none"},), passed_on=intact_payloads),
    "tfrecord compressed": Row(find_tfrecords, ({"check": "none"},), passed_on=intact_payloads),
}


# One of each way to read a source; tests/e2e/test_gcs_conversion.py has ImageNet's tars and folders.
IN_A_BUCKET = ("image folder archives", "csv of images", "cifar-10 archive", "tfds", "tfrecord compressed")


@dataclass(frozen=True)
class Reversed:
    """A converter whose scans come in the opposite order: what another listing or tar order would do."""

    converter: Converter

    def __getattr__(self, name):
        if name == "converter":  # not there yet while it is unpickled
            raise AttributeError(name)
        return getattr(self.converter, name)

    def scan(self, storage, source):
        refs = concat(list(self.converter.scan(storage, source)))
        yield refs.take(np.arange(len(refs))[::-1])


def convert(shards, converter, sources, out, processes=1, **fields):
    fields = {"max_bad_records": 20, "run_id": "contract"} | fields
    job = ConversionJob(converter, sources, str(out), num_shards=shards, **fields)
    args = type("Args", (), {"runner": "local", "local_processes": processes})
    launch(job, beam_options(args, []), Console(quiet=True))


@pytest.fixture(scope="module", params=CONVERTERS)
def converted(request, tmp_path_factory, write_raw_data):
    """(row, raw directory, its shards): converted once, by Beam, in one process."""
    row, directory = CONVERTERS[request.param], tmp_path_factory.mktemp("contract")
    write_raw_data(request.param, directory / "raw")
    convert(row.shards, *row.find(str(directory / "raw")), directory / "out")
    return row, directory / "raw", directory / "out"


def scanned(converter, sources):
    return [concat(list(converter.scan(open_storage(source.uri), source))) for source in sources]


def records_of(path):
    data, at = path.read_bytes(), 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        yield data[at + HEADER_BYTES : at + HEADER_BYTES + size]
        at += size + FRAME_BYTES


def test_it_pickles_and_is_the_same_afterwards(converted):
    row, raw, _ = converted
    converter, sources = row.find(str(raw))
    assert pickle.loads(pickle.dumps((converter, sources))) == (converter, sources)


def test_a_second_scan_finds_the_same(converted):
    row, raw, _ = converted
    first, second = (scanned(*row.find(str(raw))) for _ in range(2))
    assert [list(refs) for refs in first] == [list(refs) for refs in second]
    assert sum(map(len, first)) > 20


@without_beam
def test_the_order_of_listing_and_sources_changes_no_byte(converted, tmp_path, shard_digests):
    row, raw, out = converted
    converter, sources = row.find(str(raw))
    convert(row.shards, Reversed(converter), sources[::-1], tmp_path)
    assert shard_digests(tmp_path) == shard_digests(out)
    assert len(shard_digests(out)) == sum(row.shards.values()) + len(row.shards) + 1


# A command of two workers takes 5 s. The rows differ in what is pickled, which the first test compares; of converters
# that make records, tests/e2e/test_runners.py has one.
@pytest.mark.parametrize("converted", [*CONVERTERS] if SWEEP else ["tfrecord compressed"], indirect=True)
def test_two_processes_write_the_same_bytes(converted, tmp_path, shard_digests):
    row, raw, out = converted
    convert(row.shards, *row.find(str(raw)), tmp_path, processes=2)
    assert shard_digests(tmp_path) == shard_digests(out)


@without_beam
@pytest.mark.parametrize("converted", CONVERTERS if SWEEP else IN_A_BUCKET, indirect=True)
def test_raw_data_and_shards_in_a_bucket_have_the_same_bytes(converted, bucket, gcs_server, shard_digests):
    row, raw, out = converted
    for path in (path for path in raw.rglob("*") if path.is_file()):
        gcs_server.write(bucket.removeprefix("gs://"), f"raw/{path.relative_to(raw)}", path.read_bytes())
    convert(row.shards, *row.find(f"{bucket}/raw"), f"{bucket}/out")
    assert shard_digests(f"{bucket}/out") == shard_digests(out)


def test_every_record_has_exactly_the_features_of_the_schema(converted):
    row, raw, out = converted
    converter, _ = row.find(str(raw))
    assert read_manifest(str(out)).schema == converter.schema
    written = [record for path in out.glob("*-of-*") for record in records_of(path)]
    assert row.passed_on is None or sorted(row.passed_on(raw)) == sorted(written)
    for record in written:
        features = decode_example(record)
        assert set(features) == set(converter.schema.features)
        alone = {key: value if converter.schema.features[key].shape else value[0] for key, value in features.items()}
        assert row.passed_on or encode_example(converter.schema, alone) == record
        for label in features[converter.labels.key]:
            assert 0 <= label - converter.labels.base < len(converter.labels.names)


def test_written_and_rejected_are_what_was_scanned(converted):
    row, raw, out = converted
    converter, sources = row.find(str(raw))
    manifest = read_manifest(str(out))
    assert set(manifest.splits) == set(row.shards)
    for split, entry in manifest.splits.items():
        rows = scanned(converter, [source for source in sources if source.split == split])
        written = sum(1 for path in out.glob(f"{split}-*") for _ in records_of(path))
        ledger = (out / f"_rejects/{split}.jsonl").read_text().splitlines()
        assert written + len(ledger) == sum(map(len, rows))
        assert (written, len(ledger)) == (entry.num_records, entry.rejected)
    assert sum(entry.rejected for entry in manifest.splits.values()) > 0


def test_the_digest_changes_with_whatever_changes_bytes(converted):
    row, raw, _ = converted
    converter, _ = row.find(str(raw))
    assert converter.digest_fields() == row.find(str(raw))[0].digest_fields()
    digests = [converter.digest_fields()]
    for change in row.changes:
        digests.append(dataclasses.replace(converter, **change).digest_fields())
    assert all(a != b for i, a in enumerate(digests) for b in digests[:i])


@without_beam
def test_raw_data_of_another_place_and_time_with_other_files_beside_are_the_same_plan(converted, tmp_path):
    row, raw, out = converted
    moved = shutil.copytree(raw, tmp_path / "moved")
    for name in (".DS_Store", *row.beside):
        (moved / name).write_bytes(b"of no concern")
    for path in moved.rglob("*"):
        os.utime(path, (10**9, 10**9))
    again = shutil.copytree(out, tmp_path / "again")
    written = {path.name: path.stat().st_ino for path in again.glob("*-of-*")}
    changes = {"max_bad_records": 99, "run_id": "other", "verify_existing": True}
    convert(row.shards, *row.find(str(moved)), again, **changes)  # another plan would be refused
    assert {path.name: path.stat().st_ino for path in again.glob("*-of-*")} == written
