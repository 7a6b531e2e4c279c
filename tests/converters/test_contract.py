"""What every converter must hold, one row a layout of raw data: a new source is a new row."""

import dataclasses
import itertools
import os
import pickle
import shutil

import numpy as np
import pytest
from converter_rows import CONVERTERS
from rich.console import Console
from sweep import SWEEP

from beam_jobs.converter import ConversionJob
from beam_jobs.launch import launch
from beam_jobs.rows.packed_rows import PackedRows
from beam_jobs.rows.references import concat
from beam_jobs.split import packed_files
from converters.command_line import beam_options
from pipeline.shards.example import encode_example
from pipeline.shards.example_decoding import decode_example
from pipeline.shards.frames import FRAME_BYTES, HEADER_BYTES
from pipeline.shards.manifest import read_manifest

without_beam = pytest.mark.usefixtures("without_beam")


# One of each way to read a source; tests/e2e/test_gcs_conversion.py has ImageNet's tars and folders.
IN_A_BUCKET = (
    "image folder archives",
    "csv of images",
    "cifar-10 archive",
    "tfds",
    "tfrecord compressed",
    "packed texts",
    "rows of parquet",
)


def reversed_scans(converter):
    """The converter, but its scans come in the opposite order: what another listing or tar order would do."""

    # isinstance(..., Packer) looks for members in the class, since Python 3.12
    class Reversed(type(converter)):
        def scan(self, storage, source):
            refs = concat(list(super().scan(storage, source)))
            yield refs.take(np.arange(len(refs))[::-1])

        def pack(self, source, number, window):
            pack = super().pack(source, number, window)
            cuts = itertools.pairwise([0, *np.cumsum(pack.sizes).tolist()])
            payloads = [pack.data[begin:end] for begin, end in cuts]
            return dataclasses.replace(
                pack,
                keys=pack.keys[::-1],
                data=b"".join(payloads[::-1]),
                sizes=pack.sizes[::-1],
                offsets=pack.offsets[::-1],
                columns={name: values[::-1] for name, values in pack.columns.items()},
            )

        def __reduce__(self):
            return reversed_scans, (converter,)

    made = object.__new__(Reversed)
    vars(made).update(vars(converter))
    return made


def convert(shards, converter, sources, out, processes=1, **fields):
    fields = {"max_bad_records": 20, "run_id": "contract"} | fields
    job = ConversionJob(converter, sources, str(out), num_shards=shards, **fields)
    args = type("Args", (), {"runner": "local", "local_processes": processes})
    launch(job, beam_options(args, []), Console(quiet=True))


@pytest.fixture(scope="module", params=CONVERTERS)
def converted(request, tmp_path_factory):
    """(row, raw directory, its shards): converted once, by Beam, in one process."""
    row, directory = CONVERTERS[request.param], tmp_path_factory.mktemp("contract")
    row.write(directory / "raw")
    convert(row.shards, *row.find(str(directory / "raw")), directory / "out")
    return row, directory / "raw", directory / "out"


def scanned(converter, sources):
    job = ConversionJob(converter, sources, "nowhere", dry_run=True)
    batches = ([*packed_files.scanned(job, source)] for source in sources)
    return [[row for rows in several for row in rows_of(rows)] for several in batches]


def rows_of(rows):
    """What is known of each row."""
    if isinstance(rows, PackedRows):
        return zip(rows.rows["rank"], rows.rows["size"], rows.alone().keys, strict=True)
    return rows


def records_of(path):
    data, at = path.read_bytes(), 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        yield data[at + HEADER_BYTES : at + HEADER_BYTES + size]
        at += size + FRAME_BYTES


@pytest.mark.slow
def test_a_converter_and_its_sources_are_equal_after_pickling(converted):
    row, raw, _ = converted
    converter, sources = row.find(str(raw))
    assert pickle.loads(pickle.dumps((converter, sources))) == (converter, sources)


def test_a_second_scan_finds_the_same_references(converted):
    row, raw, _ = converted
    first, second = (scanned(*row.find(str(raw))) for _ in range(2))
    assert first == second
    assert sum(map(len, first)) > 20


@without_beam
def test_the_order_of_listing_and_sources_changes_no_byte(converted, tmp_path, shard_digests):
    row, raw, out = converted
    converter, sources = row.find(str(raw))
    convert(row.shards, reversed_scans(converter), sources[::-1], tmp_path)
    assert shard_digests(tmp_path) == shard_digests(out)
    assert len(shard_digests(out)) == sum(row.shards.values()) + len(row.shards) + 2


# A command of two workers takes 5 s. The rows differ in what is pickled, which the first test compares;
# tests/e2e/test_runners.py has ImageNet's.
if SWEEP:

    def test_two_processes_write_the_same_bytes(converted, tmp_path, shard_digests):
        row, raw, out = converted
        convert(row.shards, *row.find(str(raw)), tmp_path, processes=2)
        assert shard_digests(tmp_path) == shard_digests(out)


@without_beam
@pytest.mark.parametrize("converted", CONVERTERS if SWEEP else IN_A_BUCKET, indirect=True)
def test_raw_data_and_shards_in_a_bucket_have_the_same_bytes(
    converted, bucket, gcs_server, shard_digests
):
    row, raw, out = converted
    for path in (path for path in raw.rglob("*") if path.is_file()):
        gcs_server.write(
            bucket.removeprefix("gs://"), f"raw/{path.relative_to(raw)}", path.read_bytes()
        )
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
        alone = {
            key: value if converter.schema.features[key].shape else value[0]
            for key, value in features.items()
        }
        assert row.passed_on or encode_example(converter.schema, alone) == record
        for label in features[converter.labels.key] if converter.labels else ():
            assert 0 <= label - converter.labels.base < len(converter.labels.names)


def test_every_scanned_record_is_either_written_or_rejected(converted):
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
def test_the_plan_does_not_depend_on_place_times_or_unrelated_files(converted, tmp_path):
    row, raw, out = converted
    moved = shutil.copytree(raw, tmp_path / "moved")
    for name in (".DS_Store", "Thumbs.db", *row.beside):
        (moved / name).write_bytes(b"of no concern")
    for path in moved.rglob("*"):
        os.utime(path, (10**9, 10**9))
    again = shutil.copytree(out, tmp_path / "again")
    written = {path.name: path.stat().st_ino for path in again.glob("*-of-*")}
    changes = {"max_bad_records": 99, "run_id": "other", "verify_existing": True}
    convert(row.shards, *row.find(str(moved)), again, **changes)  # another plan would be refused
    assert {path.name: path.stat().st_ino for path in again.glob("*-of-*")} == written
