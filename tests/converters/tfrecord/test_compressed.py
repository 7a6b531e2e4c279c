"""Compressed TFRecord files: told by their content, unpacked once, named where they are damaged."""

import gzip
import zlib

import numpy as np
import pytest
import tensorflow as tf
from tfrecord_numbers import NUMBERS, convert, payload, payloads_in

from converters.tfrecord import layouts
from pipeline.errors import OptionError, RawDataError
from pipeline.shards.manifest import read_manifest
from pipeline.shards.record import frame
from pipeline.storage.schemes import open_storage

pytestmark = pytest.mark.usefixtures("without_beam")


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_tfrecords_are_detected_by_content_and_uncompressed_once(raw, tmp_path, compression):
    for path in raw.iterdir():
        records = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
        with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type=compression)) as writer:
            for record in records:
                writer.write(record)
    with pytest.raises(OptionError, match=r"has to be uncompressed before it can be scanned, and --dry-run writes"):
        convert(raw, tmp_path / "out", "--dry-run")
    convert(raw, tmp_path / "out")
    assert sorted(payloads_in(tmp_path / "out")) == sorted(map(payload, range(20)))
    assert list((tmp_path / "out/_scratch").iterdir()) == []


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress], ids=["gzip", "zlib"])
@pytest.mark.parametrize("spoil", [lambda d: d[:-9], lambda d: d[:40] + bytes(9) + d[49:]], ids=["cut", "damaged"])
def test_a_damaged_compressed_file_is_named(tmp_path, compress, spoil):
    data = b"".join(frame(np.random.default_rng(i).bytes(500)) for i in range(100))
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/train.tfrecord.gz").write_bytes(spoil(compress(data)))
    with pytest.raises(RawDataError, match=r"train.tfrecord.gz is truncated or damaged: .*\. Copy it again\."):
        convert(tmp_path / "raw", tmp_path / "out")


def test_data_after_the_end_of_a_zlib_stream_are_an_error(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/train.tfrecord").write_bytes(zlib.compress(frame(payload(1))) + b"more")
    with pytest.raises(RawDataError, match="data after the end of the zlib stream"):
        convert(tmp_path / "raw", tmp_path / "out")


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_very_large_record_is_not_sampled_for_the_schema(tmp_path, monkeypatch, pack):
    monkeypatch.setattr(layouts, "_MAX_SAMPLED_BYTES", 1000)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/train.tfrecord").write_bytes(pack(frame(payload(1)) + frame(bytes(1001))))
    storage = open_storage(str(tmp_path))
    files = {"train": storage.list(str(tmp_path / "raw"))}
    assert layouts.infer_schema(storage, str(tmp_path / "raw"), files).features == NUMBERS.features


def test_half_compressed_files_of_a_bucket_need_an_output_in_a_bucket(raw, bucket, gcs_server, tmp_path):
    for number, pack in enumerate((bytes, gzip.compress)):
        name = f"train-{number:05d}-of-00002"
        gcs_server.write(bucket.removeprefix("gs://"), f"raw/{name}", pack((raw / name).read_bytes()))
    with pytest.raises(OptionError, match=r"some files of 'train' are compressed and some are not.* same storage"):
        convert(f"{bucket}/raw", tmp_path / "out")
    convert(f"{bucket}/raw", f"{bucket}/out")
    assert read_manifest(f"{bucket}/out").splits["train"].num_records == 20
