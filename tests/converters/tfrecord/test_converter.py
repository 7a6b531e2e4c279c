"""TFRecord files re-sharded: payloads as they were, damage named, what is known of them kept."""

import gzip
import json
import zlib

import numpy as np
import pytest
import tensorflow as tf
from tfrecord_numbers import NUMBERS, convert, payload, payloads_in, write

from converters import tfrecord as layouts
from converters.tfrecord import find_raw
from pipeline.commands.verify import main as verify
from pipeline.errors import ConversionError, OptionError, RawDataError, SchemaError
from pipeline.shards.example import encode_example
from pipeline.shards.frames import frame
from pipeline.shards.manifest import read_manifest
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.sources.merged_schemas import read_schema
from pipeline.storage.schemes import open_storage

pytestmark = pytest.mark.usefixtures("without_beam")


def ledger(out, split="train"):
    return [json.loads(line) for line in (out / f"_rejects/{split}.jsonl").read_text().splitlines()]


def test_payloads_that_are_not_examples_are_copied_unchanged_with_an_opaque_schema(
    tmp_path, out, capsys
):
    lines = [b"", b"a line", b"\0" * 3000, *(bytes([i]) * i for i in range(1, 200))]
    write(tmp_path / "raw/train.tfrecord", lines)
    convert(tmp_path / "raw", out, "--num-shards=train=3")
    assert sorted(payloads_in(out)) == sorted(lines)
    assert "the records are not tf.train.Examples: they are copied" in capsys.readouterr().err
    assert read_manifest(str(out)).schema.opaque
    assert verify([str(out)]) == 0


def damaged(path, record, byte, frame_bytes):
    data = bytearray(path.read_bytes())
    data[record * frame_bytes + byte] ^= 1
    path.write_bytes(data)


SIZE = len(frame(payload(0)))
DAMAGE = {
    "a payload": (3, 13, 19, r"its payload has crc32c \w{8}, not the one stored after it"),
    "a length": (3, 0, 13, f"the checksum of its length is wrong; the {7 * SIZE} bytes from here on are unreadable"),
    "the checksum of a length": (9, 8, 19, f"is wrong; the {SIZE} bytes from here on are unreadable"),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_one_line_in_the_ledger_that_says_how_much_is_lost(raw, out, what):
    record, byte, written, text = DAMAGE[what]
    damaged(raw / "train-00001-of-00002", record, byte, SIZE)
    with pytest.raises(ConversionError, match=rf"train-00001-of-00002:00000000{record}: .*{text}"):
        convert(raw, out)
    convert(raw, out, "--max-bad-records=1")
    assert len(payloads_in(out)) == written
    (line,) = ledger(out)
    assert (line["offset"], line["stage"]) == (
        record * SIZE,
        "convert" if what == "a payload" else "scan",
    )


@pytest.mark.parametrize("cut", [1, SIZE - 3, SIZE, SIZE + 5])
def test_a_file_that_ends_early_loses_its_last_record_and_says_so_unless_it_ends_between_two(
    raw, out, cut
):
    path = raw / "train-00001-of-00002"
    path.write_bytes(path.read_bytes()[:-cut])
    convert(raw, out, "--max-bad-records=1")
    assert len(payloads_in(out)) == (19 if cut <= SIZE else 18)
    assert [line["error"].split(" ")[:3] for line in ledger(out)] == [["the", "file", "ends"]] * (
        cut != SIZE
    )


def test_a_record_that_does_not_fit_the_schema_is_rejected_unless_nothing_is_checked(
    raw, tmp_path, out
):
    other = [payload(i) for i in range(50)] + [
        encode_example(Schema("o", {"j": Feature("int64")}), {"j": 1}),
        b"no Example",
    ]
    write(raw / "val.tfrecord", other)
    with pytest.raises(ConversionError) as e:
        convert(raw, out)
    assert "val.tfrecord:000000050: 'j' is not in schema 'tfrecord'; 'i' is missing" in str(e.value)
    assert "val.tfrecord:000000051: 10 bytes that are not a tf.train.Example" in str(e.value)
    assert "(--schema-file replaces the schema, --check=none accepts every record)" in str(e.value)
    convert(raw, tmp_path / "out2", "--check=none")
    assert sorted(payloads_in(tmp_path / "out2", "validation")) == sorted(other)


def test_a_schema_file_and_label_names_go_into_the_manifest(raw, tmp_path, out):
    schema = Schema(
        "mine", {"i": Feature("int64", doc="a number"), "k": Feature("bytes", optional=True)}
    )
    (tmp_path / "schema.json").write_text(json.dumps(schema.to_json()))
    (tmp_path / "names").write_text("\n".join(map(str, range(20))))
    flags = [
        f"--schema-file={tmp_path}/schema.json",
        f"--labels-file={tmp_path}/names",
        "--label-key=i",
        "--name=mine",
    ]
    convert(raw, out, *flags)
    manifest = read_manifest(str(out))
    assert (manifest.name, manifest.schema.features) == ("mine", schema.features)
    assert manifest.labels == Labels("i", 0, tuple(map(str, range(20))))
    with pytest.raises(OptionError, match="--labels-file and --label-key belong together"):
        convert(raw, out, *flags[:2])


def test_the_schema_of_a_split_that_is_converted_later_is_the_same(raw, out):
    wide = Schema("wide", {"i": Feature("int64"), "j": Feature("int64")})
    write(raw / "val.tfrecord", [encode_example(wide, {"i": 1, "j": 2})])
    convert(raw, out, "--splits=train")
    convert(raw, out, "--splits=validation")
    manifest = read_manifest(str(out))
    assert set(manifest.splits) == {"train", "validation"}
    assert manifest.schema.features["j"].optional
    with pytest.raises(RawDataError, match=r"does not have the tset split\. .*train, validation"):
        convert(raw, out, "--splits=tset")


def test_a_directory_of_ours_keeps_its_name_schema_and_labels(raw_imagenet, tmp_path):
    raw_imagenet.convert(tmp_path / "first")
    convert(
        tmp_path / "first", tmp_path / "second", "--num-shards=train=5", "--num-shards=validation=2"
    )
    first, second = (read_manifest(str(tmp_path / name)) for name in ("first", "second"))
    assert (second.name, second.labels) == (first.name, first.labels)
    assert second.schema.features == first.schema.features
    assert [len(second.splits[split].shards) for split in ("train", "validation")] == [5, 2]
    assert sorted(payloads_in(tmp_path / "second")) == sorted(payloads_in(tmp_path / "first"))
    assert verify([str(tmp_path / "second")]) == 0  # whose keys are not those of the first
    (tmp_path / "first/train-00000-of-00001").write_bytes(b"")
    with pytest.raises(
        RawDataError, match=r"train-00000-of-00001 has 0 bytes, the manifest says \d+ bytes"
    ):
        convert(tmp_path / "first", tmp_path / "third")


def test_a_conversion_never_overwrites_the_infeed_shards_that_it_reads(raw, out):
    convert(raw, out)
    with pytest.raises(OptionError, match="is the directory of the raw data"):
        convert(out, out, "--overwrite")


def test_changed_bytes_of_the_same_size_are_another_plan_on_a_disk_too(raw, out):
    convert(raw, out)
    write(raw / "train-00000-of-00002", map(payload, [*range(9), 77]))
    with pytest.raises(ConversionError, match=r"holds split 'train' of another plan"):
        convert(raw, out)


def test_a_dry_run_prints_the_schema_as_the_option_takes_it(raw, tmp_path, out, capsys):
    convert(raw, out, "--dry-run")
    printed = capsys.readouterr()
    (line,) = [line for line in printed.err.splitlines() if line.startswith("schema: ")]
    (tmp_path / "schema.json").write_text(line.removeprefix("schema: "))
    assert read_schema(str(tmp_path / "schema.json")).features == NUMBERS.features
    assert "train: 20 records" in printed.out
    assert not out.exists()


def test_a_feature_of_two_kinds_needs_a_schema_file(raw, out):
    write(
        raw / "val.tfrecord", [encode_example(Schema("o", {"i": Feature("bytes")}), {"i": b"one"})]
    )
    with pytest.raises(SchemaError, match="'i' is bytes and int64 in different records"):
        convert(raw, out)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--num-shards=train=many", "'many' is not a number"),
        ("--num-shards=3", "write SPLIT="),
        (
            "--num-shards=trian=4",
            r"there is no split 'trian'\. Did you mean 'train'\? Known: train\.",
        ),
        ("--pattern=train", "write SPLIT="),
        ("--splits=,", "no split was chosen"),
    ],
)
def test_malformed_options_are_refused(raw, out, flag, message):
    with pytest.raises(OptionError, match=message):
        convert(raw, out, flag)


def test_a_number_of_shards_of_a_split_that_was_not_chosen_has_no_effect(raw, out):
    write(raw / "val.tfrecord", [encode_example(NUMBERS, {"i": 1})])
    convert(raw, out, "--splits=train", "--num-shards=val=4", "--num-shards=train=2")
    assert [len(entry.shards) for entry in read_manifest(str(out)).splits.values()] == [2]


def test_a_directory_without_tfrecords_says_what_it_looked_for(tmp_path, out):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/notes.txt").write_text("nothing")
    with pytest.raises(
        RawDataError, match=r"has no files with names of TFRecord files .* --pattern train=PATTERN"
    ):
        convert(tmp_path / "raw", out)
    with pytest.raises(RawDataError, match="--raw-data-dir=.*/nowhere does not exist"):
        convert(tmp_path / "nowhere", out)


def test_in_a_bucket_a_scan_streams_and_does_not_ask_for_each_header(bucket, gcs_server):
    data = b"".join(frame(bytes(100_000)) for _ in range(100))
    gcs_server.write(bucket.removeprefix("gs://"), "raw/train.tfrecord", data)
    converter, (source,) = find_raw(f"{bucket}/raw", [], [], None)
    gcs_server.reset()
    refs = list(converter.scan(open_storage(bucket), source))
    assert sum(map(len, refs)) == 100
    assert len(gcs_server.requests(r"raw(/|%2F)train\.tfrecord")) < 10


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_tfrecords_are_detected_by_content_and_uncompressed_once(raw, out, compression):
    for path in raw.iterdir():
        records = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
        with tf.io.TFRecordWriter(
            str(path), tf.io.TFRecordOptions(compression_type=compression)
        ) as writer:
            for record in records:
                writer.write(record)
    with pytest.raises(
        OptionError, match=r"has to be uncompressed before it can be scanned, and --dry-run writes"
    ):
        convert(raw, out, "--dry-run")
    convert(raw, out)
    assert sorted(payloads_in(out)) == sorted(map(payload, range(20)))
    assert list((out / "_scratch").iterdir()) == []


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress], ids=["gzip", "zlib"])
@pytest.mark.parametrize(
    "spoil", [lambda d: d[:-9], lambda d: d[:40] + bytes(9) + d[49:]], ids=["cut", "damaged"]
)
def test_a_damaged_compressed_file_is_named(tmp_path, out, compress, spoil):
    data = b"".join(frame(np.random.default_rng(i).bytes(500)) for i in range(100))
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/train.tfrecord.gz").write_bytes(spoil(compress(data)))
    with pytest.raises(
        RawDataError, match=r"train.tfrecord.gz is truncated or damaged: .*\. Copy it again\."
    ):
        convert(tmp_path / "raw", out)


def test_data_after_the_end_of_a_zlib_stream_are_an_error(tmp_path, out):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/train.tfrecord").write_bytes(zlib.compress(frame(payload(1))) + b"more")
    with pytest.raises(RawDataError, match="data after the end of the zlib stream"):
        convert(tmp_path / "raw", out)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_very_large_record_is_not_sampled_for_the_schema(tmp_path, monkeypatch, pack):
    monkeypatch.setattr(layouts, "_MAX_SAMPLED_BYTES", 1000)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/train.tfrecord").write_bytes(pack(frame(payload(1)) + frame(bytes(1001))))
    storage = open_storage(str(tmp_path))
    files = {"train": storage.list(str(tmp_path / "raw"))}
    assert layouts.infer_schema(storage, str(tmp_path / "raw"), files).features == NUMBERS.features


def test_half_compressed_files_of_a_bucket_need_an_output_in_a_bucket(raw, bucket, gcs_server, out):
    for number, pack in enumerate((bytes, gzip.compress)):
        name = f"train-{number:05d}-of-00002"
        gcs_server.write(
            bucket.removeprefix("gs://"), f"raw/{name}", pack((raw / name).read_bytes())
        )
    with pytest.raises(
        OptionError, match=r"some files of 'train' are compressed and some are not.* same storage"
    ):
        convert(f"{bucket}/raw", out)
    convert(f"{bucket}/raw", f"{bucket}/out")
    assert read_manifest(f"{bucket}/out").splits["train"].num_records == 20
