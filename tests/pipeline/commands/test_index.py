"""Foreign TFRecord files become a dataset without a byte of theirs being touched."""

import gzip
import json
import os
import re
import shutil
import tracemalloc
from hashlib import blake2b

import numpy as np
import pytest
import tensorflow as tf
from damage import flip

from pipeline.commands import index_builder
from pipeline.commands.index import main
from pipeline.datasets import eval_dataset
from pipeline.errors import ConversionError, EmptySplitError, OptionError, RawDataError
from pipeline.shards.example import encode_example
from pipeline.shards.frames import frame
from pipeline.shards.manifest import read_manifest
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.storage.local import LocalStorage

NUMBERS = Schema("numbers", {"i": Feature("int64"), "pair": Feature("float32", (2,))})


def write(path, numbers, schema=NUMBERS, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for i in numbers:
            writer.write(encode_example(schema, {"i": i, "pair": [i, -i], **more}))


@pytest.fixture
def foreign(tmp_path):
    """30 records of train in three files, the second one empty, and 5 of val."""
    for number, numbers in enumerate([range(17), (), range(17, 30)]):
        write(tmp_path / f"data/ds-train.tfrecord-{number:05d}-of-00003", numbers)
    write(tmp_path / "data/ds-val.tfrecord", range(100, 105))
    return tmp_path / "data"


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def rows_of(directory, split, key="i"):
    dataset = eval_dataset(str(directory), split, global_batch=4)
    batches = list(dataset.batches())
    assert (
        sum(int(batch["_crc"].astype(np.int64).sum()) for batch in batches) % 2**32
        == dataset.info.expected_crc
    )
    return [
        int(i)
        for batch in batches
        for i, mask in zip(batch[key], batch["_mask"], strict=True)
        if mask
    ]


def test_indexed_tfrecords_are_read_in_the_order_of_tensorflow_and_left_unchanged(foreign, capsys):
    before = contents(foreign)
    assert main([str(foreign)]) == 0
    assert "train: 30 records" in capsys.readouterr().out
    files = sorted(map(str, foreign.glob("ds-train*")))
    keys = {"i": tf.io.FixedLenFeature((), tf.int64)}
    tensorflows = [
        int(tf.io.parse_single_example(r, keys)["i"]) for r in tf.data.TFRecordDataset(files)
    ]
    assert rows_of(foreign, "train") == tensorflows == list(range(30))
    assert rows_of(foreign, "validation") == list(range(100, 105))
    assert {
        name: data for name, data in contents(foreign).items() if name != "manifest.json"
    } == before


def test_splits_indexed_one_by_one_and_again_give_the_same_bytes(foreign):
    main([str(foreign)])
    whole = contents(foreign)
    shutil.rmtree(foreign / "_index")
    (foreign / "manifest.json").unlink()
    main([f"{foreign}/ds-val*"])
    assert set(read_manifest(str(foreign)).splits) == {"validation"}
    main([f"{foreign}/ds-train*"])
    assert contents(foreign) == whole
    main([f"{foreign}/ds-val.tfrecord"])
    assert contents(foreign) == whole
    assert rows_of(foreign, "validation") == list(range(100, 105))


def test_the_schema_fits_the_splits_that_were_indexed_before(foreign):
    main([f"{foreign}/ds-train*"])
    narrow = Schema("n", {"i": Feature("int64"), "pair": Feature("float32", (3,))})
    write(foreign / "ds-test.tfrecord", range(3), narrow, pair=[1, 2, 3])
    main([f"{foreign}/ds-test*"])
    schema = read_manifest(str(foreign)).schema
    assert schema.features == {"i": Feature("int64"), "pair": Feature("float32", (None,))}
    assert rows_of(foreign, "train") == list(range(30))


def test_all_damage_is_named_by_file_record_and_offset_and_nothing_is_written(foreign, capsys):
    size = len(frame(encode_example(NUMBERS, {"i": 1, "pair": [1, -1]})))
    flip(foreign / "ds-train.tfrecord-00000-of-00003", 2 * size + 15)
    flip(foreign / "ds-train.tfrecord-00000-of-00003", 5 * size)
    os.truncate(foreign / "ds-train.tfrecord-00002-of-00003", size + 7)
    assert main([str(foreign)]) == 1
    printed = capsys.readouterr().out
    damage = [line for line in printed.splitlines() if line.startswith("damaged: ")]
    assert len(damage) == 3
    assert (
        f"{foreign}/ds-train.tfrecord-00000-of-00003, record 2 at byte {2 * size}: its payload has crc32c"
        in damage[0]
    )
    assert (
        f"record 5 at byte {5 * size}: the checksum of its length is wrong; without an index"
        in damage[1]
    )
    assert (
        f"00002-of-00003, record 1 at byte {size}: the shard ends inside it, at byte {size + 7}"
        in damage[2]
    )
    assert f"--raw-data-dir={foreign} --max-bad-records=3" in printed
    assert not (foreign / "manifest.json").exists()
    assert not (foreign / "_index").exists()


@pytest.mark.parametrize(
    "make", [lambda path: path.symlink_to("nowhere"), os.mkfifo], ids=["link", "pipe"]
)
def test_a_link_to_nowhere_or_a_pipe_is_not_taken_for_an_empty_file(foreign, capsys, make):
    path = foreign / "ds-train.tfrecord-00001-of-00003"
    path.unlink()
    make(path)
    assert main([str(foreign)]) == 1
    assert re.search(
        rf"damaged: .*{path} ?(: No such file|is a directory or a device)", capsys.readouterr().out
    )
    assert not (foreign / "manifest.json").exists()


def test_label_names_and_the_dataset_name_stay_when_it_is_indexed_again(foreign, tmp_path):
    (tmp_path / "names").write_text("zero\none\n")
    main(
        [
            str(foreign),
            f"--labels-file={tmp_path}/names",
            "--label-key=i",
            "--label-base=3",
            "--name=mine",
        ]
    )
    main([f"{foreign}/ds-val*"])
    manifest = read_manifest(str(foreign))
    assert (manifest.name, manifest.labels) == ("mine", Labels("i", 3, ("zero", "one")))
    with pytest.raises(OptionError, match="belong together"):
        main([str(foreign), "--label-key=i"])


def test_a_schema_file_is_what_every_record_must_fit(foreign, tmp_path, capsys):
    schema = Schema(
        "mine", {"i": Feature("int64", doc="a number"), "pair": Feature("float32", (1, 2))}
    )
    (tmp_path / "schema.json").write_text(json.dumps(schema.to_json()))
    main([str(foreign), f"--schema-file={tmp_path}/schema.json"])
    assert read_manifest(str(foreign)).schema.features == schema.features
    narrow = Schema("n", {"i": Feature("int64")})
    (tmp_path / "schema.json").write_text(json.dumps(narrow.to_json()))
    with pytest.raises(
        OptionError, match=r"has other splits \(.*\) whose schema differs from --schema-file"
    ):
        write(foreign / "other-test.tfrecord", [], narrow)
        (foreign / "other-test.tfrecord").write_bytes(frame(encode_example(narrow, {"i": 1})))
        main([f"{foreign}/other*", f"--schema-file={tmp_path}/schema.json"])
    assert main([str(foreign), f"--schema-file={tmp_path}/schema.json"]) == 1
    assert "record 0 at byte 0: 'pair' is not in schema 'tfrecord'" in capsys.readouterr().out


def test_files_whose_names_tell_no_split_need_the_split_option(tmp_path):
    write(tmp_path / "part-0", range(3))
    write(tmp_path / "part-1", range(3, 5))
    with pytest.raises(
        OptionError, match=r"none of 2 files \(part-0, part-1, ...\) has a name like"
    ):
        main([f"{tmp_path}/part-*"])
    main([f"{tmp_path}/part-?", "--split=train"])
    assert rows_of(tmp_path, "train") == list(range(5))


def compress(directory):
    path = directory / "ds-val.tfrecord"
    path.write_bytes(gzip.compress(path.read_bytes()))


@pytest.mark.parametrize(
    ("change", "pattern", "error", "message"),
    [
        (
            compress,
            *(
                "",
                OptionError,
                r"val.tfrecord is compressed \(gzip\).*converters.tfrecord_to_gcs --raw",
            ),
        ),
        (
            lambda path: (path / "_shards").mkdir() or (path / "_shards/a.json").write_text("{}"),
            *("", ConversionError, "own index. If it has not finished, run its command again"),
        ),
        (
            lambda path: write(path / "part-2-of-3.tfrecord", []),
            *("", RawDataError, "cannot tell the split of part-2-of-3.tfrecord"),
        ),
        (str, "/x-*", OptionError, r"/x-\* matches no file"),
        (str, "/nowhere", OptionError, "/nowhere is neither a file nor a directory"),
        (
            lambda path: write(path / "test.tfrecord", []),
            *("/test*", EmptySplitError, "split 'test' of .* has no records: its files are empty"),
        ),
    ],
)
def test_files_that_cannot_be_indexed_are_refused(foreign, change, pattern, error, message):
    change(foreign)
    with pytest.raises(error, match=message):
        main([f"{foreign}{pattern}"])
    assert not (foreign / "manifest.json").exists()


def test_a_conversion_is_never_indexed_over(numbers_of):
    with pytest.raises(
        ConversionError, match="is the output of a conversion, which writes its own"
    ):
        main([numbers_of(5)])


@pytest.mark.parametrize("piece_bytes", [1, 13, 1000])
def test_the_size_of_reads_does_not_change_the_index(foreign, monkeypatch, piece_bytes):
    main([str(foreign)])
    before = contents(foreign)
    monkeypatch.setattr(index_builder, "PIECE_BYTES", piece_bytes)
    main([str(foreign)])
    assert contents(foreign) == before


def test_an_index_made_in_a_bucket_has_the_same_bytes(foreign, bucket, gcs_server):
    main([str(foreign)])
    for name, data in contents(foreign).items():
        if name.startswith("ds-"):
            gcs_server.write(bucket.removeprefix("gs://"), f"data/{name}", data)
    assert main([f"{bucket}/data"]) == 0
    for name in ("manifest.json", "_index/train.npy", "_index/validation.npy"):
        assert (
            gcs_server.read(bucket.removeprefix("gs://"), f"data/{name}")
            == (foreign / name).read_bytes()
        )
    assert rows_of(f"{bucket}/data", "train") == list(range(30))


def test_the_digests_of_an_index_follow_the_format(foreign):
    main([str(foreign)])
    entry = read_manifest(str(foreign)).splits["train"]
    keys = [
        f"train/ds-train.tfrecord-{f:05d}-of-00003:{i:09d}"
        for f, n in ((0, 17), (2, 13))
        for i in range(n)
    ]
    digest = (
        sum(int.from_bytes(blake2b(key.encode(), digest_size=16).digest(), "big") for key in keys)
        % 2**128
    )
    assert entry.key_digest == f"{digest:032x}"
    plan = f"infeed index\0{entry.fingerprint}\0{entry.index_crc32c:08x}"
    assert entry.plan_digest == blake2b(plan.encode(), digest_size=16).hexdigest()
    assert entry.sources == {"inputs": 3, "bytes": entry.num_bytes}


@pytest.mark.slow
def test_memory_is_eight_bytes_a_record(tmp_path, monkeypatch):
    monkeypatch.setattr(index_builder, "PIECE_BYTES", 1 << 14)
    (tmp_path / "train.tfrecord").write_bytes(frame(b"0" * 300) * 5_000)
    storage = LocalStorage()
    tracemalloc.start()
    try:
        listed = storage.list(str(tmp_path))
        files = [*index_builder.indexed_files(storage, str(tmp_path), "train", listed)]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [file.num_records for file in files] == [5_000]
    assert held < 12 * 5_000 + 60_000
