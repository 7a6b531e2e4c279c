"""Files that can only be read from their fronts give any records in any order, and hold no more than is in sight."""

import functools
import gzip
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import CorruptRecordError, ShardError, StorageError
from pipeline.shards.frames import crc32c, frame
from pipeline.sources import sequential_file as sequential_reading
from pipeline.sources.records import Group, fetch, weighed
from pipeline.sources.sequential_records import SequentialRecords
from pipeline.spec import Opaque
from pipeline.storage.local import LocalStorage
from pipeline.storage.storage import Stat

STORAGE = LocalStorage()
open_tfrecords = functools.partial(SequentialRecords, "tfrecord")


def open_lines(name, files, storage, key):
    return SequentialRecords("text", name, files, storage, Opaque(key))


SIZES = (5, 0, 9, 1, 30)
N = sum(SIZES)
PAYLOADS = [b"%d." % i * (i % 7) for i in range(N)]
KINDS = {
    "tfrecord": (lambda payloads: b"".join(map(frame, payloads)), bytes, open_tfrecords, Opaque()),
    "tfrecord gzip": (lambda payloads: b"".join(map(frame, payloads)), gzip.compress, open_tfrecords, Opaque()),
    "tfrecord zlib": (lambda payloads: b"".join(map(frame, payloads)), zlib.compress, open_tfrecords, Opaque()),
    "text": (lambda payloads: b"".join(p + b"\n" for p in payloads), bytes, open_lines, "text"),
    "text gzip": (lambda payloads: b"".join(p + b"\n" for p in payloads), gzip.compress, open_lines, "text"),
}  # fmt: skip


def listed(directory):
    return {f"{directory}/{name}": stat for name, stat in STORAGE.list(str(directory)).items()}


def write(directory, payloads, sizes, kind):
    put, pack, open_files, layout = KINDS[kind]
    directory.mkdir(exist_ok=True)
    first = 0
    for number, size in enumerate(sizes):
        (directory / f"part-{number}").write_bytes(pack(put(payloads[first : first + size])))
        first += size
    return open_files("these", listed(directory), STORAGE, layout)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    return {
        kind: write(tmp_path_factory.mktemp("data") / "of", PAYLOADS, SIZES, kind) for kind in KINDS
    }


@given(
    st.sampled_from(list(KINDS)),
    st.lists(st.lists(st.integers(0, N - 1), max_size=20), max_size=12),
    st.sampled_from([0, 1, 300, 5000, 10**6]),
    st.sampled_from([1, 2, 128]),
)
def test_records_are_read_in_any_order_with_any_look_ahead_and_few_open_files(
    opened, kind, groups, ahead, cursors
):
    records = opened[kind]
    assert records.info.num_records == N
    wanted = [np.array(group, np.int64) for group in groups]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequential_reading, "MAX_CURSORS", cursors)
        reading = records.read(weighed(records, wanted), ahead)
        found = []
        for group in reading:
            found.append(group)
            assert sum(map(len, reading._cursors.values())) <= cursors
    assert [[record[0] for record in group] for group in found] == [
        [PAYLOADS[i] for i in g] for g in groups
    ]
    assert [[record[1] for record in group] for group in found] == [
        [crc32c(PAYLOADS[i]) for i in g] for g in groups
    ]
    assert reading.held_bytes == 0
    assert not reading._kept


def shuffled_in_windows(window):
    return [
        np.random.default_rng(begin).permutation(np.arange(begin, min(N, begin + window)))
        for begin in range(0, N, window)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_each_file_is_read_once_if_the_read_ahead_covers_the_window(opened, kind, requested):
    records = opened[kind]
    ids = np.concatenate(shuffled_in_windows(10))
    groups = [ids[at : at + 2] for at in range(0, N, 2)]
    in_sight = records.weigh(np.argsort([-len(p) for p in PAYLOADS])[:20])
    requested.clear()
    assert len(list(records.read(weighed(records, groups), in_sight))) == len(groups)
    once = sum(counted.file.stat.bytes for counted in records._files)
    assert sum(size for _, _, size in requested) == once
    list(records.read(weighed(records, groups), 0))
    # what was passed has to be passed again
    assert sum(size for _, _, size in requested) > 3 * once


def test_records_outside_the_look_ahead_are_not_held(tmp_path):
    payloads = [b"%05d" % i * 20 for i in range(1000)]
    records = write(tmp_path, payloads, (1000,), "tfrecord gzip")
    every_fourth = [np.arange(at, at + 40, 4) for at in range(0, 1000, 40)]  # one of four hosts
    for ahead in (0, 3 * 10 * 350):
        reading = records.read(weighed(records, every_fourth), ahead)
        held = 0
        for found, ids in zip(reading, every_fourth, strict=True):
            assert [record[0] for record in found] == [payloads[i] for i in ids]
            assert reading.held_bytes == sum(350 for _ in reading._kept)
            held = max(held, reading.held_bytes)
        assert held <= ahead + 350


def test_a_damaged_payload_is_one_record_and_named(tmp_path):
    frames = [frame(payload) for payload in PAYLOADS]
    frames[3] = frames[3][:-5] + bytes([frames[3][-5] ^ 1]) + frames[3][-4:]
    for name, pack in (("plain", bytes), ("packed", gzip.compress)):
        (tmp_path / name).write_bytes(pack(b"".join(frames)))
        path = f"{tmp_path}/{name}"
        records = open_tfrecords("these", {path: STORAGE.stat(path)}, STORAGE, Opaque())
        found = fetch(records, np.arange(N))
        assert [i for i, record in enumerate(found) if isinstance(record, CorruptRecordError)] == [
            3
        ]
        at = sum(map(len, frames[:3]))
        with pytest.raises(
            CorruptRecordError,
            match=rf"{path}, record 3 at byte {at}: its payload has crc32c .*Copy",
        ):
            raise found[3]


def opened_whole(path, open_files, layout):
    return open_files("these", {str(path): STORAGE.stat(str(path))}, STORAGE, layout)


DATA = b"".join(map(frame, PAYLOADS))
AT_4 = sum(len(frame(p)) for p in PAYLOADS[:4])


PACKED, LINES = gzip.compress(DATA), gzip.compress(b"a\n" * 999)
LOST = {
    "plain, cut": (DATA, DATA[:-1], r", record 44 at byte \d+: the file ends at byte"),
    "plain, cut inside a header": (DATA, DATA[: AT_4 + 3], f", record 4 at byte {AT_4}: the file ends inside its header"),
    "plain, a header": (DATA, DATA[:AT_4] + b"\1" + DATA[AT_4 + 1 :], f", record 4 at byte {AT_4}: the checksum of its"),
    "gzip, cut": (PACKED, PACKED[:-40], r": the gzip stream has no end"),
    "gzip without its last byte": (PACKED, PACKED[:-1], ": the gzip stream has no end"),
    "gzip, wrong sum": (PACKED, PACKED[:-8] + b"abcd" + PACKED[-4:], r": .*data check"),
    "gzip and more": (PACKED, PACKED + b"more", r": .*incorrect header"),
    "zlib and more": (zlib.compress(DATA), zlib.compress(DATA) + b"more", ": there is data after the end"),
    "a frame cut in gzip": (PACKED, gzip.compress(DATA[:-1]), r", record 44 at byte \d+: the file ends at byte"),
    "text gzip, cut": (LINES, LINES[:-9], ": the gzip stream has no end"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_counting_and_reading_report_where_a_file_is_damaged(tmp_path, name):
    path, (whole, damaged, message) = tmp_path / "file", LOST[name]
    arguments = (open_lines, "text") if "text" in name else (open_tfrecords, Opaque())
    path.write_bytes(whole)
    records = opened_whole(path, *arguments)
    path.write_bytes(damaged)
    with pytest.raises(ShardError, match=rf"{path}{message}.*Copy the file again"):
        opened_whole(path, *arguments)
    if len(damaged) <= len(whole):  # what is longer than it was listed is not looked at
        shorter = len(damaged) < len(whole)
        error, text = (
            (StorageError, f"{path} ends at byte")
            if shorter
            else (ShardError, f"{path}{message}.*Copy")
        )
        with pytest.raises(error, match=text):
            fetch(records, np.arange(records.info.num_records))


def test_a_file_that_shrinks_before_it_is_counted_is_an_error(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(DATA[:-7])
    with pytest.raises(ShardError, match=r"record 44 at byte \d+: the file ends at byte"):
        open_tfrecords("these", {str(path): Stat(len(DATA))}, STORAGE)


def test_a_file_of_another_count_than_was_said_is_an_error(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(DATA)
    files = {str(path): Stat(len(DATA))}
    for count, message in ((N - 1, "has more records"), (N + 1, f"has {N} records")):
        records = open_tfrecords("these", files, STORAGE, Opaque(), [count], "info.json says")
        with pytest.raises(ShardError, match=rf"{path} {message}; info\.json says {count}\. Copy"):
            fetch(records, np.arange(records.info.num_records))
    assert fetch(open_tfrecords("these", files, STORAGE, Opaque(), [N]), np.arange(N))


def test_an_endless_order_is_read_without_planning_all_groups(opened):
    """An endless order of small data, all of which is in sight."""

    def endless():
        for count in range(100):
            assert count < 50, "it looks ahead without end"
            yield Group(np.arange(N), 1000)

    reading = iter(opened["text"].read(endless(), 10_000))
    for _ in range(20):
        assert [record[0] for record in next(reading)] == PAYLOADS
