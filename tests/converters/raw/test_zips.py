"""Byte ranges of zip members, against Python's own zipfile."""

import io
import itertools
import struct
import tracemalloc
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_data.archives import streamed_zip_of, zip_of
from sweep import examples

from beam_jobs.converter import Reject
from converters.raw.zips import ZipError, unpacked, zip_members
from pipeline.storage.local import LocalStorage

FILES = {f"class {n % 3}/{'n' * n}.jpg": bytes([n]) * (n * 77) for n in range(20)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "some.zip"


def scan(path):
    return list(zip_members(LocalStorage(), str(path)))


def contents(path):
    """{name: content} by ranged reads alone."""
    ranges = [
        (m, data)
        for m in scan(path)
        for data in LocalStorage().read_ranges([(str(path), m.offset, m.span)])
    ]
    return {m.name: unpacked(data, m.size, m.crc32) for m, data in ranges if m.kind == "file"}


@pytest.mark.parametrize(
    "data",
    [
        zip_of(FILES),
        zip_of(FILES, zipfile.ZIP_STORED),
        streamed_zip_of(FILES),
        b"#!/bin/sh\nexec unzip $0\n" + zip_of(FILES),
    ],
    ids=["deflated", "stored", "streamed", "behind a program"],
)
def test_every_member_is_a_range_that_ends_before_the_next(path, data):
    path.write_bytes(data)
    assert contents(path) == FILES
    members = scan(path)
    assert all(a.offset + a.span <= b.offset for a, b in itertools.pairwise(members))


def test_a_member_that_overlaps_the_next_is_an_error(path):
    data = bytearray(zip_of({"a": b"a" * 300, "b": b"b" * 300}, zipfile.ZIP_STORED))
    # its entry in the directory, which ends with its offset before the name
    second = data.rindex(b"PK\1\2")
    struct.pack_into("<I", data, second + 42, 10)
    path.write_bytes(data)
    with pytest.raises(ZipError, match="member 'a' overlaps what follows it"):
        scan(path)


def test_a_comment_that_looks_like_an_end_does_no_harm(path):
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("a.jpg", b"a" * 300)
        packed.comment = b"PK\5\6 is how a directory ends, and this is longer than that"
    assert contents(path) == {"a.jpg": b"a" * 300}


def test_an_empty_archive_has_no_members(path):
    path.write_bytes(zip_of({}))
    assert scan(path) == []


def test_a_gap_between_two_zip_members_is_hardly_read(path):
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("a.jpg", b"a" * 300)
        assert packed.fp
        packed.fp.seek(300_000)
        packed.start_dir = 300_000
        packed.writestr("b.jpg", b"b" * 300)
    assert contents(path) == {"a.jpg": b"a" * 300, "b.jpg": b"b" * 300}
    assert scan(path)[0].span < 70_000


def test_zip64_is_read(path, monkeypatch):
    # of sizes and offsets, from which on zipfile writes it
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 5)
    data = zip_of(FILES, zipfile.ZIP_STORED)
    assert b"PK\6\6" in data
    path.write_bytes(data)
    assert contents(path) == FILES


def with_names(data, old, new, **fields):
    """The zip with other bytes for a name in both its places, flags, system and version set in its directory."""
    data = bytearray(data.replace(old, new))
    entry = data.rindex(b"PK\1\2", 0, data.rindex(new))
    data[entry + 4] = fields.get("version", data[entry + 4])
    data[entry + 5] = fields.get("system", data[entry + 5])
    struct.pack_into("<H", data, entry + 8, fields.get("flags", 0))
    return bytes(data)


NAMES = [
    ("K\u00e4se".encode(), {"system": 3}, "K\u00e4se/1.jpg"),
    ("K\u00e4s".encode("cp437") + b"ee", {"system": 0}, "K\u00e4see/1.jpg"),
    ("K\u00e4s".encode("cp437") + b"ee", {"system": 3}, "K\u00e4see/1.jpg"),  # Python 3.14
    (b"K\xe4see", {"system": 3, "version": 30}, "K\udce4see/1.jpg"),  # Info-ZIP
    (b"a\\bcd", {"system": 0}, "a/bcd/1.jpg"),
    (b"a\\bcd", {"system": 3}, "a\\bcd/1.jpg"),
]


@pytest.mark.parametrize(("name", "fields", "expected"), NAMES, ids=range(len(NAMES)))
def test_names_are_read_as_the_system_wrote_them(path, name, fields, expected):
    path.write_bytes(with_names(zip_of({"abcde/1.jpg": b"x"}), b"abcde", name, **fields))
    assert [m.name for m in scan(path)] == [expected]


def test_links_and_folders_of_a_zip_have_their_kinds(path):
    with zipfile.ZipFile(path, "w") as packed:
        packed.mkdir("folder")
        link = zipfile.ZipInfo("link")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        packed.writestr(link, "folder")
    assert [(m.name, m.kind) for m in scan(path)] == [("folder/", "folder"), ("link", "link")]


def test_an_encrypted_member_is_named(path):
    path.write_bytes(with_names(zip_of({"abcde/1.jpg": b"x"}), b"abcde", b"abcde", flags=1))
    with pytest.raises(
        ZipError, match=r"some\.zip is encrypted \(member 'abcde/1\.jpg'\)\. Unpack it with its"
    ):
        scan(path)


def test_a_multi_part_zip_is_refused(path):
    data = bytearray(zip_of(FILES))
    struct.pack_into("<H", data, data.rindex(b"PK\5\6") + 4, 2)
    path.write_bytes(data)
    with pytest.raises(ZipError, match=r"some\.zip is the last of 3 parts of a zip"):
        scan(path)


WHOLE = zip_of({f"cat/{n}.jpg": bytes(range(256)) * n for n in range(1, 9)})


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_damage_in_a_zip_is_found_when_it_is_listed_or_read(tmp_path_factory, data):
    damaged = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(WHOLE) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("zip") / "some.zip"
    path.write_bytes(
        bytes(damaged[: data.draw(st.sampled_from([len(WHOLE), len(WHOLE) // 2, len(WHOLE) - 1]))])
    )
    whole = zipfile.ZipFile(io.BytesIO(WHOLE))
    try:
        members = scan(path)
    except ZipError:
        return
    assert len(members) == 8
    for member in members:
        (read,) = LocalStorage().read_ranges([(str(path), member.offset, member.span)])
        try:
            content = unpacked(read, member.size, member.crc32)
        except Reject:
            continue
        assert content in {whole.read(name) for name in whole.namelist()}


def test_a_member_larger_than_its_stated_size_is_not_inflated(path):
    path.write_bytes(zip_of({"bomb.jpg": bytes(10**8)}))
    (member,) = scan(path)
    (data,) = LocalStorage().read_ranges([(str(path), member.offset, member.span)])
    assert len(data) < 10**6
    tracemalloc.start()
    with pytest.raises(Reject, match="another size or checksum"):
        unpacked(data, 1000, member.crc32)
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()
