"""Byte ranges of tar members."""

import io
import tarfile

import hostile_tars
import pytest

from converters.raw.tars import TarError, members
from pipeline.storage.local import LocalStorage


def make(files, **options):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", **options) as tar:
        for name, data in files:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def scan(path, offset=0, size=None):
    return list(
        members(LocalStorage(), str(path), offset, path.stat().st_size if size is None else size)
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "some.tar"


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_member_is_a_byte_range_even_in_a_nested_tar(path, form):
    files = [(f"{'long/' * 15}{'n' * n}.JPEG", bytes([n]) * (n * 77)) for n in range(20)]
    inner = make(files, format=form)
    path.write_bytes(make([("first.tar", b"x" * 700), ("inner.tar", inner)]))
    outer = scan(path)
    assert [m.name for m in outer] == ["first.tar", "inner.tar"]
    found = scan(path, outer[1].offset, outer[1].size)
    data = path.read_bytes()
    assert [(m.name, data[m.offset : m.offset + m.size]) for m in found] == files
    assert {m.kind for m in found} == {"file"}


def test_tar_members_have_kinds_and_their_names_are_kept_as_data(path):
    directory, link, hard, pipe = (
        tarfile.TarInfo(name) for name in ("dir", "link", "hard", "pipe")
    )
    directory.type, link.type, hard.type, pipe.type = (
        tarfile.DIRTYPE,
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.FIFOTYPE,
    )
    path.write_bytes(
        make(
            [(i, b"") for i in (directory, link, hard, pipe)]
            + [("../../etc/x", b"1"), ("/abs", b"2")]
        )
    )
    assert [(m.name, m.kind) for m in scan(path)] == [
        ("link", "link"), ("hard", "link"), ("pipe", "special file"), ("../../etc/x", "file"), ("/abs", "file"),
    ]  # fmt: skip


def test_names_that_are_not_utf8_survive(path):
    path.write_bytes(
        make([("n\udcff.JPEG", b"x")], format=tarfile.USTAR_FORMAT, errors="surrogateescape")
    )
    assert scan(path)[0].name.encode("utf-8", "surrogateescape") == b"n\xff.JPEG"


WHOLE = make([("a", b"A" * 600), ("b", b"B" * 600)])
MEMBER = 512 + 1024


@pytest.mark.parametrize(
    "cut", [100, 512, 700, MEMBER - 1, MEMBER, MEMBER + 100, 2 * MEMBER - 300, 2 * MEMBER]
)
def test_a_tar_cut_anywhere_gives_the_members_before_and_then_an_error(path, cut):
    path.write_bytes(WHOLE[:cut])
    found = []
    with pytest.raises(TarError, match=r"some\.tar breaks off as a tar: .* not fully copied"):
        for member in members(LocalStorage(), str(path), 0, cut):
            found.append(member.name)
    # A member whose header is there is listed though its data may be cut: reading it fails, naming the file.
    assert found == ["a", "b"][: sum(cut > at for at in (511, MEMBER + 511))]


def test_an_empty_tar_has_no_members_and_an_empty_or_compressed_file_is_no_tar(path):
    path.write_bytes(make([]))
    assert scan(path) == []
    for data in (b"", b"\x1f\x8b" + b"z" * 2000):
        path.write_bytes(data)
        with pytest.raises(TarError, match="damaged, compressed, or was not fully copied"):
            scan(path)


NONSENSE = {  # what tarfile makes of it: in Python 3.11.7; and in 3.14.8, for which a negative size is no header
    "size back to itself": r"(the header at byte \d+ has -512 bytes|no header)",  # the same members for ever
    "pax size below nothing": r"(the header at byte \d+ has -1024 bytes|no header)",
    "name of a gigabyte": r"(a header of 1,000,000,000 bytes|empty header)",  # read into memory
    "size below nothing in a long name": r"(a header of |no header)",  # the rest of the tar read into memory
    "many long names": "recursion",
    "sparse that goes on beyond the end": "out of range",
    "sparse map of nonsense": "invalid literal",
    "zeroed header": "an end mark at byte .*, and more data after it",  # the end, without a word
    "two tars in one": "an end mark at byte .*, and more data after it",
}


@pytest.mark.parametrize("name", NONSENSE)
def test_an_invalid_header_is_an_error_after_the_members_before_it(path, name):
    first, nonsense = hostile_tars.member(b"first", b"1"), hostile_tars.hostile(b"jpeg")[name]
    after = b"" if "beyond the end" in name else hostile_tars.member(b"after", b"2") + bytes(1024)
    path.write_bytes(first + nonsense + after)
    found = []
    with pytest.raises(TarError, match=f"breaks off as a tar: .*{NONSENSE[name]}"):
        for member in members(LocalStorage(), str(path), 0, path.stat().st_size):
            found.append(member.name)
            assert len(found) < 10
    assert found[0] == "first"


def test_a_long_name_is_not_read_into_memory_in_pieces_either(path):
    name = hostile_tars.member(b"././@LongLink", b"n" * (4 << 20), b"L")
    path.write_bytes(name + hostile_tars.member(b"one", b"1") + bytes(1024))
    with pytest.raises(TarError, match=r"a header of (4,194,304|more than 1,048,576) bytes"):
        scan(path)


def test_a_member_that_reaches_beyond_its_inner_tar_is_a_part_of_a_file(path):
    inner = hostile_tars.member(b"whole", b"x" * 600) + hostile_tars.member(
        b"cut", b"y" * 512, size=10**9
    )
    path.write_bytes(make([("inner.tar", inner), ("next.tar", b"z" * 5000)]))
    found = []
    with pytest.raises(TarError, match="unexpected end of data"):
        for member in members(LocalStorage(), str(path), 512, len(inner)):
            found.append(member)
    assert [(m.name, m.kind) for m in found] == [("whole", "file"), ("cut", "part of a file")]
    assert found[1].offset + found[1].size == 512 + len(inner)


def with_header(data, at, **fields):
    """The tar with bytes put into the header at `at`, and its checksum made right."""
    places = {"size": slice(124, 136), "mtime": slice(136, 148), "kind": slice(156, 157)}
    header = bytearray(data[at : at + 512])
    for field, value in fields.items():
        header[places[field]] = value
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * ord(" ") + sum(header[156:]))
    return data[:at] + bytes(header) + data[at + 512 :]


@pytest.mark.parametrize(
    "size", [b"\x80" + b"\xff" * 11, b"\x80" + bytes(3) + b"\x7f" + b"\xff" * 7]
)
def test_a_size_beyond_all_files_is_an_error_not_a_crash(path, size):
    path.write_bytes(with_header(WHOLE, MEMBER, size=size))
    with pytest.raises(TarError, match=r"some\.tar breaks off as a tar"):
        scan(path)


def test_plain_headers_and_tarfiles_own_reading_find_the_same(path):
    plain = make(
        [(f"{n}.JPEG", bytes([n]) * (n * 300)) for n in range(9)], format=tarfile.USTAR_FORMAT
    )
    path.write_bytes(plain)
    found = scan(path)
    assert len(found) == 9
    for at in [0, *(member.offset + 512 * -(-member.size // 512) for member in found[:-1])]:
        # Contiguous files (type 7) are files too, but not plain ones: from here on tarfile reads.
        path.write_bytes(with_header(plain, at, kind=b"7"))
        assert scan(path) == found


def test_a_wrong_checksum_is_seen(path):
    for at in range(0, 512, 37):
        damaged = bytearray(WHOLE)
        damaged[MEMBER + at] ^= 0x01
        path.write_bytes(bytes(damaged))
        with pytest.raises(TarError, match=f"no header and no end mark at byte {MEMBER}"):
            scan(path)
