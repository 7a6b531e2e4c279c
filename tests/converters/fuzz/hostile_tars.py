"""Tars that no program makes by accident, each a whole one, and a walk through any tar that owes nothing to tarfile.

test_fuzz has this folder on its path."""

import gzip
import io
import tarfile
from collections.abc import Mapping

from PIL import Image

BLOCK = 512
BAD = "n00000001_1.JPEG"


def header(name: bytes, size: bytes, kind: bytes = b"0", link: bytes = b"") -> bytes:
    """One header block; size: its twelve bytes."""
    block = bytearray(BLOCK)
    block[0 : len(name)] = name
    block[100:124] = b"0000644\0" + b"0000000\0" * 2
    block[124:136] = size
    block[136:148] = b"%011o\0" % 0
    block[156:157] = kind
    block[157 : 157 + len(link)] = link
    block[257:265] = b"ustar\x0000"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def member(name: bytes, data: bytes, kind: bytes = b"0", size: int | None = None) -> bytes:
    """A header with its data; size: what the header says, if not the truth."""
    said = len(data) if size is None else size
    return header(name, b"%011o\0" % said, kind) + data + bytes(-len(data) % BLOCK)


def pax(records: Mapping[str, str | bytes], kind: bytes = b"x") -> bytes:
    """A pax header before a member (or with kind g, before all)."""
    lines = []
    for key, value in records.items():
        rest = (
            b" "
            + key.encode()
            + b"="
            + (value if isinstance(value, bytes) else value.encode())
            + b"\n"
        )
        length = len(rest)
        while len(b"%d" % length) + len(rest) != length:
            length = len(b"%d" % length) + len(rest)
        lines.append(b"%d" % length + rest)
    return member(b"././@PaxHeader", b"".join(lines), kind)


def small_jpeg() -> bytes:
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((16, 12)).save(buffer, "JPEG")
    return buffer.getvalue()


def compressed(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
        file.write(data)
    return buffer.getvalue()


def hostile(jpeg: bytes) -> dict[str, bytes]:
    """Name -> a tar, without its end mark, to stand between good members."""
    one = member(BAD.encode(), jpeg)
    long = b"d/" * 400 + b"long.JPEG"
    return {
        "parent directories": member(b"../../../escaped.JPEG", jpeg),
        "absolute": member(b"/tmp/escaped-from-a-tar.JPEG", jpeg),
        "name of a folder": member(b"folder/", b"", b"5")
        + member(b"..", jpeg)
        + member(b".", jpeg),
        "no name": member(b"", jpeg),
        "not UTF-8": member(b"n\xff\xfe\x80.JPEG", jpeg) + member(b"n\xc3\x28.JPEG", b"no image"),
        "control characters": member(b"two\nlines\x1b[31m\r.JPEG", jpeg)
        + member(b"[bold]x[/bold].JPEG", b"no image"),
        "twice": one + one + one,
        "twice with other bytes": one + member(BAD.encode(), b"no image"),
        "links": b"".join(
            header(b"link%d" % n, b"%011o\0" % 0, b"%d" % n, b"/etc/passwd") for n in (1, 2)
        ),
        "link with a size": header(b"link", b"%011o\0" % 700, b"1", b"other"),
        "devices": b"".join(header(b"device%d" % n, b"%011o\0" % 0, b"%d" % n) for n in (3, 4, 6)),
        "contiguous": member(b"contiguous.JPEG", jpeg, b"7"),
        "unknown kind": member(b"what.JPEG", jpeg, b"Z"),
        "compressed member": member(b"images.tar.gz", compressed(one))
        + member(b"n.JPEG", compressed(jpeg)),
        "tar inside": member(b"inner.tar", one + bytes(1024)),
        "GNU long name": member(b"././@LongLink", long + b"\0", b"L") + one,
        "GNU long link": member(b"././@LongLink", long + b"\0", b"K")
        + header(b"l", b"%011o\0" % 0, b"2", b"x"),
        "pax long name": pax({"path": long.decode()}) + one,
        "pax name that is not UTF-8": pax({"path": b"n\xff\xfe.JPEG"}) + one,
        "pax name with a zero": pax({"path": "n\0.JPEG"}) + one,
        "pax name of nothing": pax({"path": ""}) + one,
        "pax size": pax({"size": str(len(jpeg))}) + one,
        "pax size beyond everything": pax({"size": str(10**30)}) + one,
        "pax size below nothing": pax({"size": "-1024"}) + one,
        "pax size for all": pax({"size": "7"}, b"g") + one,
        "pax of nonsense": member(b"././@PaxHeader", b"0 a=b\n99999999999 c=d\n", b"x") + one,
        "pax numbers": pax({"mtime": "inf", "uid": "nan", "gid": "x"}) + one,
        "pax without a member": pax({"path": "n.JPEG"}),
        "many long names": member(b"././@LongLink", b"n\0", b"L") * 3000 + one,
        "name of a gigabyte": member(b"././@LongLink", b"n\0", b"L", size=10**9) + one,
        "size back to itself": header(b"loop.JPEG", b"\xff" * 10 + b"\xfe\x00") + one,
        "size below nothing in a long name": header(
            b"././@LongLink", b"\xff" * 10 + b"\xfc\x00", b"L"
        )
        + one,
        "size beyond everything": header(b"large.JPEG", b"\x80" + b"\xff" * 11),
        "size of a terabyte": header(b"large.JPEG", b"\x80" + (10**12).to_bytes(11, "big")),
        "sparse": _sparse(jpeg),
        "sparse that goes on beyond the end": _sparse(jpeg, goes_on=True),
        "sparse of an exabyte": pax({"GNU.sparse.map": "0,9", "GNU.sparse.size": str(10**18)})
        + one,
        "sparse map of nonsense": pax({"GNU.sparse.map": "0,x"}) + one,
        "sparse 1.0 of nonsense": pax({"GNU.sparse.major": "1", "GNU.sparse.minor": "0"})
        + member(b"n", b"zz"),
        "zeroed header": bytes(BLOCK) + one,
        "two tars in one": bytes(2 * BLOCK) + one,
    }


def _sparse(jpeg: bytes, goes_on: bool = False) -> bytes:
    info = tarfile.TarInfo("sparse.JPEG")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, len(jpeg)
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT)[:BLOCK])
    block[386:410] = b"%011o\0%011o\0" % (0, len(jpeg))
    block[482] = goes_on
    block[483:495] = b"%011o\0" % 10**9
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + (b"" if goes_on else jpeg + bytes(-len(jpeg) % BLOCK))


def walk(data: bytes) -> list[bytes]:
    """The contents of the members that stand before the first damage, or before what this walk does not know.

    A member whose data are cut off is one of them. Folders are none."""
    found, at, named = [], 0, False
    while (block := data[at : at + BLOCK]) and len(block) == BLOCK and block != bytes(BLOCK):
        kind, digits = block[156:157], block[124:136].rstrip(b"\0 ").lstrip(b" ")
        total = sum(block) - sum(block[148:156]) + 8 * 32
        if (
            block[148:155].strip(b"\0 ") != b"%06o" % total
            or not digits.isdigit()
            or b"8" in digits
            or b"9" in digits
        ):
            break
        size = int(digits, 8)
        if kind in b"1234567890\0":
            is_folder = kind == b"5" or (kind == b"\0" and block[:100].rstrip(b"\0").endswith(b"/"))
            has_data = kind in b"07\0" and not is_folder
            if not is_folder:
                found.append(data[at + BLOCK : at + BLOCK + size] if has_data else b"")
            at += BLOCK + (-(-size // BLOCK) * BLOCK if has_data else 0)
        elif kind == b"L" and size < 5000 and not named:
            at += BLOCK + -(-size // BLOCK) * BLOCK
        else:
            break
        named = kind == b"L"
    return found
