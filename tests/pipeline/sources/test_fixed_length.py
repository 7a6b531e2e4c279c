"""Files of records of equal length: the records of tf.data's own reader, in any order, and what does not fit."""

import contextlib
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples

from pipeline.datasets import open_dataset
from pipeline.errors import EmptySplitError, OptionError, SchemaError, ShardError, StorageError
from pipeline.formats import FixedLength
from pipeline.shards.frames import crc32c
from pipeline.sources.indexed_records import IndexedReading
from pipeline.sources.records import fetch, intact, weighed
from pipeline.tf_cpu import tf


def write(directory, sizes, record_bytes=5, header=b"", footer=b""):
    """Files data_0.bin, ... of so many records of noise; all records."""
    noise, records = np.random.default_rng(0), []
    for number, size in enumerate(sizes):
        own = [noise.bytes(record_bytes) for _ in range(size)]
        (directory / f"data_{number}.bin").write_bytes(header + b"".join(own) + footer)
        records += own
    return records


def payloads(records, ids):
    return [intact(record)[0] for record in fetch(records, np.array(ids, np.int64))]


@pytest.mark.parametrize(
    ("header", "footer"), [(b"", b""), (b"hi", b""), (b"", b"end"), (b"hi", b"end")]
)
def test_records_are_those_of_tensorflows_own_reader(tmp_path, header, footer):
    written = write(tmp_path, (4, 0, 3, 1), header=header, footer=footer)
    files = sorted(map(str, tmp_path.iterdir()))
    theirs = tf.data.FixedLengthRecordDataset(
        files, 5, header_bytes=len(header), footer_bytes=len(footer)
    )
    records = open_dataset(f"{tmp_path}/*.bin", format=FixedLength(5, len(header), len(footer)))
    ours = payloads(records, range(8))
    assert ours == list(theirs.as_numpy_iterator()) == written
    assert payloads(records, [7, 0, 4, 4]) == [written[7], written[0], written[4], written[4]]
    assert [record[1] for record in fetch(records, np.arange(8))] == [
        crc32c(record) for record in written
    ]
    assert (
        records.info.num_records,
        records.info.num_bytes,
        records.info.crcs,
        records.info.whole_files,
    ) == (8, 40, None, None)
    assert records.where(6) == f"{tmp_path}/data_2.bin, record 2 at byte {len(header) + 10}"


@settings(max_examples=examples(30))
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=4).filter(any),
    st.integers(1, 9000),
    st.integers(0, 50_000),
    st.data(),
)
def test_any_groups_in_any_order_give_their_records(
    tmp_path_factory, sizes, record_bytes, ahead, data
):
    directory = tmp_path_factory.mktemp("fixed")
    written = write(directory, sizes, record_bytes, header=b"abc")
    records = open_dataset(directory, format=FixedLength(record_bytes, header_bytes=3))
    ids = st.lists(st.integers(0, len(written) - 1), max_size=30)
    groups = data.draw(st.lists(ids, max_size=8))
    reading = records.read(weighed(records, [np.array(group, np.int64) for group in groups]), ahead)
    found = [[intact(record)[0] for record in group] for group in reading]
    assert found == [[written[i] for i in group] for group in groups]
    assert reading.held_bytes == 0


def test_a_name_need_not_be_utf_8(tmp_path):
    (tmp_path / os.fsdecode(b"\xff.bin")).write_bytes(b"abcd")
    assert open_dataset(tmp_path, format=FixedLength(2)).num_records == 2


def test_neighbouring_fixed_length_records_are_read_with_one_range_per_file(tmp_path, requested):
    write(tmp_path, (1000, 1000), record_bytes=64)
    records = open_dataset(tmp_path, format=FixedLength(64))
    assert isinstance(records.read([], 0), IndexedReading)
    payloads(records, range(500, 1500))
    assert [(Path(path).name, at, size) for path, at, size in requested] == [
        ("data_0.bin", 500 * 64, 500 * 64),
        ("data_1.bin", 0, 500 * 64),
    ]


@pytest.mark.parametrize(
    ("size", "format", "text"),
    [
        (11, FixedLength(5), r"data\.bin has 11 bytes, which is not a whole number of 5-byte records: 2 records and 1"),
        (4, FixedLength(5), "0 records and 4 bytes"),
        (11, FixedLength(5, 2, 3), "of 5-byte records between a header of 2 and a footer of 3: 1 records and 1 bytes"),
        (4, FixedLength(5, 2, 3), "has 4 bytes, .* a footer of 3: shorter than header and footer"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_fit_is_refused(tmp_path, size, format, text):
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(size))
    with pytest.raises(ShardError, match=text):
        open_dataset(path, format=format)
    header, footer = format.header_bytes, format.footer_bytes
    theirs = tf.data.FixedLengthRecordDataset(
        str(path), format.record_bytes, header_bytes=header, footer_bytes=footer
    )
    if size < header + footer:
        with contextlib.suppress(tf.errors.InvalidArgumentError):  # of TensorFlow 2.22; until then
            assert list(theirs) == []  # it passes over it in silence
    else:
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="not an exact multiple of the record length"
        ):
            list(theirs)


def test_a_file_that_became_shorter_is_an_error_and_never_short_data(tmp_path):
    write(tmp_path, (4, 4))
    records = open_dataset(tmp_path, format=FixedLength(5))
    os.truncate(tmp_path / "data_1.bin", 12)
    with pytest.raises(StorageError, match=r"data_1\.bin ends at byte 12"):
        fetch(records, np.arange(8))


def test_the_fingerprint_is_of_names_sizes_and_format(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, (4, 2) if name < "c" else (2, 4), header=b"xy", footer=b"z" * 8)
    prints = [
        open_dataset(tmp_path / name, format=format).info.fingerprint
        for name, format in [
            ("a", FixedLength(5, 2, 8)),
            ("b", FixedLength(5, 2, 8)),
            ("c", FixedLength(5, 2, 8)),
            ("a", FixedLength(5, 5, 5)),
            ("a", FixedLength(np.dtype([("x", "u1", (5,))]), 2, 8)),
            ("a", FixedLength(np.dtype([("y", "u1", (5,))]), 2, 8)),
        ]
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 5


@pytest.mark.parametrize(
    ("record", "others", "error", "text"),
    [
        (0, {}, OptionError, r"record=0 must be a number of bytes, 1 to 2\*\*32 - 1, or an np\.dtype"),
        (2**32, {}, OptionError, "record=4294967296 must be"),
        ("u1", {}, OptionError, "record='u1' must be"),
        (5, {"header_bytes": -1}, OptionError, "header_bytes=-1 must be at least 0"),
        (5, {"footer_bytes": -2}, OptionError, "footer_bytes=-2 must be"),
        (np.dtype("u1"), {}, SchemaError, "the dtype uint8 has no named fields"),
    ],
)  # fmt: skip
def test_invalid_fixed_length_options_are_refused(record, others, error, text):
    with pytest.raises(error, match=text):
        FixedLength(record, **others)


def test_files_without_records_and_formats_of_arrays_are_refused(tmp_path):
    write(tmp_path, (0, 0), header=b"xy")
    with pytest.raises(EmptySplitError, match="2 files without a record"):
        open_dataset(tmp_path, format=FixedLength(5, header_bytes=2))
    with pytest.raises(OptionError, match=r"format=FixedLength.* is for files only; arrays"):
        open_dataset({"x": np.arange(3)}, format=FixedLength(5))
