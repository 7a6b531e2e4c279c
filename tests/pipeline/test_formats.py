"""What open_dataset makes of files without a manifest: the records that tf.data has of them, in splits if there are."""

import gzip
import logging
import zlib
from pathlib import Path

import numpy as np
import pytest

from pipeline.datasets import eval_dataset, open_dataset
from pipeline.errors import (
    EmptySplitError,
    ManifestError,
    OptionError,
    RawDataError,
    SchemaError,
    StorageError,
)
from pipeline.formats import TextLines, TFRecords
from pipeline.shards.example import encode_example
from pipeline.shards.frames import frame
from pipeline.shards.schema import Feature, Schema
from pipeline.sources.records import fetch
from pipeline.spec import Opaque
from pipeline.tf_cpu import tf

NUMBERS = Schema("numbers", {"number": Feature("int64"), "half": Feature("float32")})


def payloads_of(records):
    return [record[0] for record in fetch(records, np.arange(records.num_records))]


def numbers(*which):
    return b"".join(frame(encode_example(NUMBERS, {"number": i, "half": i / 2})) for i in which)


TEXTS = [
    b"a\nb", b"a\n\r", b"a\n\r\r", b"a\r\nb\r\n", b"a\rb\rc\n\rd", b"\n\n", b"\r\n", b"a\n\n", b"\x00\n\xff", b"x^2\ny",
    b"long" * 300_000 + b"\nshort", b"a" * 2**20 + b"\r\r",
    b"a" * 262_143 + b"\n" + b"b" * 262_143 + b"\r\n\r",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text[:12]))
@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_lines_are_those_of_text_line_dataset(tmp_path, text, compression):
    path = tmp_path / "lines"
    path.write_bytes(gzip.compress(text) if compression else text)
    theirs = list(tf.data.TextLineDataset(str(path), compression).as_numpy_iterator())
    records = open_dataset(path, format=TextLines())
    assert payloads_of(records) == theirs
    assert records.layout == Opaque("text")


@pytest.mark.parametrize("text", [b"", b"\r", b"\r\r"])
def test_a_text_file_without_lines_is_refused(tmp_path, text):
    (tmp_path / "lines").write_bytes(text)
    assert not list(tf.data.TextLineDataset(str(tmp_path / "lines")))
    with pytest.raises(
        EmptySplitError, match="lines: 1 files without a record, so there is nothing to read"
    ):
        open_dataset(tmp_path / "lines", format=TextLines())


PACKED = {"": bytes, "GZIP": gzip.compress, "ZLIB": zlib.compress}


@pytest.mark.parametrize("compression", PACKED)
def test_records_are_those_of_tfrecord_dataset(tmp_path, compression):
    written = [b"", b"\xff" * 3_000_000, *(b"%d" % i for i in range(500))]
    for part in range(2):
        name = str(tmp_path / f"part-{part}.tfrecord")
        with tf.io.TFRecordWriter(name, compression or None) as writer:
            for payload in written:
                writer.write(payload)
    theirs = tf.data.TFRecordDataset(tf.io.gfile.glob(f"{tmp_path}/*.tfrecord"), compression)
    records = open_dataset(f"{tmp_path}/*.tfrecord")
    assert payloads_of(records) == list(theirs.as_numpy_iterator()) == 2 * written
    assert records.layout == Opaque("record")
    assert (records.info.whole_files, records.info.crcs) == (2, None)


@pytest.mark.parametrize(
    "write", [gzip.compress, lambda data: gzip.compress(data) + b"\0" * 5], ids=["", "padded"]
)
def test_gzip_of_several_members_is_one_file(tmp_path, write):
    data = numbers(*range(9))
    members = [data[:1], data[1:50], b"", data[50:]]
    (tmp_path / "x.tfrecord").write_bytes(b"".join(map(write, members)))
    assert open_dataset(tmp_path / "x.tfrecord").num_records == 9


@pytest.fixture
def foreign(tmp_path):
    """train of 7 records in files of 4, 0 and 3, and validation of 2."""
    for name, which in {
        "train-0-of-3": range(4),
        "train-1-of-3": (),
        "train-2-of-3": range(4, 7),
    }.items():
        (tmp_path / name).write_bytes(numbers(*which))
    (tmp_path / "val.tfrecord.gz").write_bytes(gzip.compress(numbers(7, 8)))
    (tmp_path / "README.md").write_text("no record")
    return tmp_path


def numbers_in(directory, split=None, **options):
    batches = eval_dataset(open_dataset(directory, split, **options), global_batch=1).batches()
    return [int(batch["number"][0]) for batch in batches]


def test_splits_of_a_directory_follow_from_its_file_names(foreign):
    assert numbers_in(foreign) == list(range(7))
    assert numbers_in(foreign, "validation") == [7, 8]
    assert numbers_in(foreign, "validation+train[1:3]") == [7, 8, 1, 2]
    with pytest.raises(
        OptionError, match=r"has no split 'trian'. Did you mean 'train'\? Known: train, validation"
    ):
        open_dataset(foreign, "trian")
    (foreign / "other-0-of-2").write_bytes(b"")
    with pytest.raises(
        RawDataError, match=r"cannot tell the split of other-0-of-2.*open_dataset: a pattern for"
    ):
        open_dataset(foreign)


def test_a_pattern_or_a_file_has_no_splits(foreign):
    assert (
        numbers_in(f"{foreign}/train*") == numbers_in(f"{foreign}/train*", "[:]") == list(range(7))
    )
    assert numbers_in(f"{foreign}/train*", "[-2:]") == [5, 6]
    assert numbers_in(foreign / "val.tfrecord.gz") == [7, 8]
    with pytest.raises(
        OptionError, match=r"split='train': .*train\* has no splits.*split=None for all.*'\[:90%\]'"
    ):
        open_dataset(f"{foreign}/train*", "train")
    with pytest.raises(OptionError, match=r"test\* matches no file"):
        open_dataset(f"{foreign}/test*")
    assert len(eval_dataset(f"{foreign}/train*", global_batch=2).spec) == 5


def test_a_directory_without_readable_files_is_refused_with_the_reason(tmp_path):
    with pytest.raises(ManifestError, match="no such directory"):
        open_dataset(tmp_path / "nowhere")
    (tmp_path / "README.md").write_text("no record")
    with pytest.raises(ManifestError, match="no conversion wrote here"):
        open_dataset(tmp_path)
    with pytest.raises(
        OptionError, match=r"no file is named like a TFRecord .* Select files with a pattern"
    ):
        open_dataset(tmp_path, format=TFRecords())


def test_an_unfinished_conversion_is_not_taken_for_foreign_files(foreign):
    (foreign / "_shards").mkdir()
    (foreign / "_shards" / "train.plan.json").write_text("{}")
    with pytest.raises(ManifestError, match="has not finished"):
        open_dataset(foreign)


def test_a_manifest_is_preferred_to_file_names_unless_a_format_is_given(numbers_of):
    directory = numbers_of(5, 3)
    indexed, foreign = open_dataset(directory), open_dataset(directory, format=TFRecords())
    assert (indexed.info.whole_files, foreign.info.whole_files) == (None, 2)
    assert payloads_of(indexed) == payloads_of(foreign)


def test_the_schema_is_that_of_a_sample_or_as_given(foreign, caplog):
    caplog.set_level(logging.INFO, "pipeline")
    records = open_dataset(foreign)
    assert {key: (f.dtype, f.shape) for key, f in records.layout.features.items()} == {
        "number": ("int64", ()),
        "half": ("float32", ()),
    }
    assert (
        "according to the first records of 2 files, each has half float32[], number int64[]"
        in caplog.text
    )
    only = Schema("only", {"number": Feature("int64", (1,))})
    assert open_dataset(foreign, format=TFRecords(only)).layout == only
    (foreign / "train-1-of-3").write_bytes(
        frame(encode_example(Schema("s", {"half": Feature("int64")}), {"half": 1}))
    )
    with pytest.raises(SchemaError, match=r"'train': 'half' is float32 and int64 in different"):
        open_dataset(foreign)


def test_the_log_states_what_was_counted(foreign, caplog):
    caplog.set_level(logging.INFO, "pipeline")
    open_dataset(foreign)
    assert "'train': counting the records of 3 files" in caplog.text
    assert "7 records, counted in 0.0 s" in caplog.text


def test_a_broken_link_is_not_taken_for_an_empty_file(foreign):
    (foreign / "train-1-of-3").unlink()
    (foreign / "train-1-of-3").symlink_to("nowhere")
    for format in (TFRecords(), TextLines()):
        with pytest.raises(StorageError, match="train-1-of-3"):
            open_dataset(f"{foreign}/train*", format=format)


def test_the_fingerprint_is_of_the_files_and_not_of_their_place(foreign, tmp_path_factory):
    copy = tmp_path_factory.mktemp("copy")
    for path in foreign.glob("train*"):
        (copy / path.name).write_bytes(path.read_bytes())
    assert open_dataset(copy).info.fingerprint == open_dataset(foreign).info.fingerprint
    Path(copy / "train-1-of-3").write_bytes(numbers(9))
    assert open_dataset(copy).info.fingerprint != open_dataset(foreign).info.fingerprint
    prints = set()
    # files of one size
    for payloads in ([b"x" * 100], [b"x" * 42, b"x" * 42], [b"y" * 42, b"y" * 42]):
        (tmp_path_factory.getbasetemp() / "one.tfrecord").write_bytes(
            b"".join(map(frame, payloads))
        )
        prints.add(open_dataset(tmp_path_factory.getbasetemp() / "one.tfrecord").info.fingerprint)
    assert len(prints) == 2  # a disk keeps no checksums
