"""Five hundred damaged or odd images, by kind, with what has to become of each: an image, or an error that names it."""

import gzip
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pictures import encoded, picture, transparent
from PIL import Image

from pipeline.datasets import eval_dataset
from pipeline.decoding.op import Op
from pipeline.shards.example import encode_example
from pipeline.shards.frames import frame
from pipeline.shards.schema import Feature, Schema

__all__ = ["KINDS", "Kind", "verdicts"]

DAMAGED = r"the (JPEG|PNG|WebP) image is damaged or truncated\. Replace it"
NO_IMAGE = r"'image/encoded' is {}; it must be a JPEG, a PNG, a HEIC or a still WebP\. Save it as one of these"
TOO_LARGE = r"'image/encoded' has more pixels than max_pixels=\d+\. Give the op a larger max_pixels"
ANY = "|".join([DAMAGED, NO_IMAGE.format(".*"), TOO_LARGE])
SIZES = ((120, 80), (61, 97), (33, 8), (200, 150), (16, 16), (256, 31))  # width, height
Make = Callable[[np.random.Generator, int], bytes]


@dataclass(frozen=True)
class Kind:
    """make: the number-th image of this kind. error: the text of the error that it has to be; None for an image.

    either: an image will do as well: the damage may lie where nobody looks, or be what libjpeg makes the best of.
    large: takes seconds and hundreds of megabytes."""

    make: Make
    count: int
    error: str | None = None
    either: bool = False
    large: bool = False

    def images(self, count: int | None = None) -> Iterator[bytes]:
        """All of them, or the first ones: the same every time."""
        for number in range(self.count if count is None else min(count, self.count)):
            yield self.make(np.random.default_rng(number), number)


def verdicts(images: Sequence[bytes], directory: Path, op: Op) -> list[str | None]:
    """The error of each as the quarantine has it, None where it was decoded; written to, and read from, a directory."""
    schema = Schema("odd", {"image/encoded": Feature("bytes")})
    records = [frame(encode_example(schema, {"image/encoded": image})) for image in images]
    directory.mkdir()
    (directory / "train.tfrecord-00000-of-00001").write_bytes(b"".join(records))
    source = eval_dataset(
        directory,
        "train",
        global_batch=16,
        ops=[op],
        keys=["image"],
        on_error="mask",
        max_bad_records=len(images),
    )
    decoded = np.concatenate([batch["_mask"] for batch in source.batches()])[: len(images)]
    found: list[str | None] = [None] * len(images)
    for bad in source.quarantine:
        found[bad.record_id] = bad.reason
    assert [reason is None for reason in found] == decoded.astype(bool).tolist()
    return found


def _saved(kind: str, mode: str = "RGB", **options: object) -> Make:
    return lambda rng, number: encoded(picture(*SIZES[number % len(SIZES)], mode), kind, **options)


def _sized(kind: str, width: int, height: int) -> Make:
    return lambda rng, number: encoded(Image.new("L", (width, height), 60 * number), kind)


def _png(depth: int, colour: int, interlaced: bool) -> Make:
    """What Pillow does not write. Interlaced: the seven passes of https://www.w3.org/TR/png-3/#8InterlaceMethods."""

    def make(rng: np.random.Generator, number: int) -> bytes:
        width, height = SIZES[number % len(SIZES)]
        channels = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
        values = np.asarray(picture(width, height).convert("RGBA"))[..., :channels]
        pixels = (values.astype(np.uint16) * 257).astype(">u2") if depth == 16 else values
        passes = [
            (0, 0, 8, 8),
            (0, 4, 8, 8),
            (4, 0, 8, 4),
            (0, 2, 4, 4),
            (2, 0, 4, 2),
            (0, 1, 2, 2),
            (1, 0, 2, 1),
        ]
        rows = [
            b"\0" + row.tobytes()
            for y, x, down, right in (passes if interlaced else [(0, 0, 1, 1)])
            for row in pixels[y::down, x::right]
            if row.size
        ]
        header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
        chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b"")]
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*each) for each in chunks)

    return make


def _crc(data: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(data))


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + _crc(name + data)


def _subsampled(*factors: int) -> Make:
    """A grey JPEG whose components have these sampling factors, which Pillow does not write: all blocks are 0."""

    def make(rng: np.random.Generator, number: int) -> bytes:
        width, height = SIZES[number % len(SIZES)]
        data = bytearray(encoded(Image.new("RGB", (width, height), (128, 128, 128)), subsampling=0))
        at = data.index(b"\xff\xc0") + 11
        data[at : at + 9 : 3] = bytes(factors)
        across, down = (
            8 * max(sides)
            for sides in zip(*(divmod(factor, 16) for factor in factors), strict=True)
        )
        # of such a block of brightness and of colours, by the usual tables
        codes = ("001010", "0000", "0000")
        unit = "".join(
            code * (factor >> 4) * (factor & 15)
            for code, factor in zip(codes, factors, strict=True)
        )
        bits = unit * (-(-width // across) * -(-height // down))
        bits += "1" * (-len(bits) % 8)
        return (
            bytes(data[: data.index(b"\xff\xda") + 14])
            + int(bits, 2).to_bytes(len(bits) // 8)
            + b"\xff\xd9"
        )

    return make


def _after_header(chunk: Callable[[bytes], bytes], mode: str = "RGB") -> Make:
    """A PNG with another chunk after its header, made from this."""

    def make(rng: np.random.Generator, number: int) -> bytes:
        data = _saved("PNG", mode)(rng, number)
        at = data.index(b"IDAT") - 4
        return data[:at] + chunk(data[12:29]) + data[at:]

    return make


def _with_wrong_checksum(rng: np.random.Generator, data: bytes) -> bytes:
    return data[:-16] + bytes([data[-16] ^ 1]) + data[-15:]


def _claiming(kind: str, width: int, height: int) -> Make:
    """A small file whose header, with a checksum that holds, claims to be large."""

    def make(rng: np.random.Generator, number: int) -> bytes:
        data = _saved(kind)(rng, number)
        if kind == "PNG":
            header = data[12:16] + struct.pack(">II", width, height) + data[24:29]
            return data[:12] + header + _crc(header) + data[33:]
        at = next(i for i in range(2, len(data)) if data[i] == 0xFF and data[i + 1] in (0xC0, 0xC2))
        return data[: at + 5] + struct.pack(">HH", height, width) + data[at + 9 :]

    return make


def _animated(rng: np.random.Generator, number: int) -> bytes:
    frames = [picture(40, 30), picture(40, 30, "L").convert("RGB")]
    return encoded(
        frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=bool(number % 2)
    )


def _transparent(rng: np.random.Generator, number: int) -> bytes:
    return encoded(transparent(*SIZES[number]), "WEBP", lossless=bool(number % 2))


def _transparent_animation(rng: np.random.Generator, number: int) -> bytes:
    return encoded(
        transparent(40, 30), "WEBP", save_all=True, append_images=[picture(40, 30, "RGBA")]
    )


def _truncated(rng: np.random.Generator, data: bytes) -> bytes:
    return data[: int(rng.integers(12, len(data) * 9 // 10))]


def _flipped(rng: np.random.Generator, data: bytes) -> bytes:
    return _with_bits_flipped(rng, data, len(data))


def _flipped_in_header(rng: np.random.Generator, data: bytes) -> bytes:
    return _with_bits_flipped(rng, data, 30)


def _with_bits_flipped(rng: np.random.Generator, data: bytes, within: int) -> bytes:
    spoilt = bytearray(data)
    for at in rng.integers(within, size=int(rng.integers(1, 17))):
        spoilt[at] ^= 1 << int(rng.integers(8))
    return bytes(spoilt)


def _zeroed(rng: np.random.Generator, data: bytes) -> bytes:
    length = int(rng.integers(1, len(data) // 3))
    at = int(rng.integers(30, len(data) - length))
    return data[:at] + bytes(length) + data[at + length :]


def _after(damage: Callable[[np.random.Generator, bytes], bytes], make: Make) -> Make:
    return lambda rng, number: damage(rng, make(rng, number))


def _constant(data: bytes) -> Make:
    return lambda rng, number: data


DAMAGED_FORMATS = {
    "JPEG": _saved("JPEG", quality=92),
    "progressive JPEG": _saved("JPEG", quality=92, progressive=True),
    "CMYK JPEG": _saved("JPEG", "CMYK"),
    "grey JPEG": _saved("JPEG", "L"),
    "PNG": _saved("PNG"),
    "interlaced PNG": _png(8, 2, True),
    "lossy WebP": _saved("WEBP", quality=90),
    "lossless WebP": _saved("WEBP", lossless=True),
}
NOT_DECODED = {
    "a GIF": _saved("GIF"),
    "a BMP": _saved("BMP"),
    "a TIFF": _saved("TIFF"),
    "a JPEG 2000": _saved("JPEG2000"),
    "an AVIF": _saved("AVIF"),
    "HTML or XML": _constant(b"<!DOCTYPE html>\n<html><body>404 \xe2\x80\x93 not found</body></html>"),
    "not a known image format": lambda rng, number: rng.bytes(2000 * number),  # the first is empty
    "not a known image format, but gzip": lambda rng, number: gzip.compress(_saved("JPEG")(rng, number)),
}  # fmt: skip
KINDS: dict[str, Kind] = {
    **{
        f"{name}, truncated": Kind(_after(_truncated, make), 14, DAMAGED)
        for name, make in DAMAGED_FORMATS.items()
    },
    **{
        f"{name}, bits flipped": Kind(_after(_flipped, make), 14, ANY, True)
        for name, make in DAMAGED_FORMATS.items()
    },
    **{
        f"{name}, bits of its header flipped": Kind(_after(_flipped_in_header, make), 8, ANY, True)
        for name, make in DAMAGED_FORMATS.items()
    },
    **{
        f"{name}, zeroed part": Kind(_after(_zeroed, make), 10, ANY, True)
        for name, make in DAMAGED_FORMATS.items()
    },
    **{
        name: Kind(make, 4, NO_IMAGE.format("no intact image"))
        for name, make in NOT_DECODED.items()
    },
    "animated WebP": Kind(_animated, 5, NO_IMAGE.format("an animated WebP")),
    "PNG that claims 10,000 x 10,000": Kind(_claiming("PNG", 10_000, 10_000), 3, TOO_LARGE),
    "PNG that claims 8,000 x 8,000": Kind(_claiming("PNG", 8_000, 8_000), 3, DAMAGED),
    "PNG that claims 2^31 x 1": Kind(_claiming("PNG", 2**31, 1), 3, NO_IMAGE.format("no intact image")),
    "JPEG that claims 65,500 x 65,500": Kind(_claiming("JPEG", 65_500, 65_500), 3, TOO_LARGE),
    "JPEG that claims 8,000 x 8,000": Kind(_claiming("JPEG", 8_000, 8_000), 3, DAMAGED, True),
    "JPEG of 10,000 x 10,000": Kind(_sized("JPEG", 10_000, 10_000), 1, TOO_LARGE, large=True),
    "PNG of 10,000 x 10,000": Kind(_sized("PNG", 10_000, 10_000), 1, TOO_LARGE, large=True),
    "WebP of 10,000 x 10,000": Kind(_sized("WEBP", 10_000, 10_000), 1, TOO_LARGE, large=True),
    "JPEG of 8,000 x 8,000": Kind(_sized("JPEG", 8_000, 8_000), 1, large=True),
    "PNG of 8,000 x 8,000": Kind(_sized("PNG", 8_000, 8_000), 1, large=True),
    **{f"{kind} of 1 x 1": Kind(_sized(kind, 1, 1), 3) for kind in ("JPEG", "PNG", "WEBP")},
    **{f"{kind} of 1 x 4000": Kind(_sized(kind, 1, 4000), 3) for kind in ("JPEG", "PNG", "WEBP")},
    **{f"{kind} of 4000 x 1": Kind(_sized(kind, 4000, 1), 3) for kind in ("JPEG", "PNG", "WEBP")},
    "CMYK JPEG": Kind(_saved("JPEG", "CMYK"), 4),
    "JPEG with bytes after its end": Kind(_after(lambda rng, data: data + rng.bytes(500), _saved("JPEG")), 4),
    "JPEG with bytes before its end": Kind(_after(lambda rng, data: data[:-2] + b"??" + data[-2:], _saved("JPEG")), 4),
    "JPEG of an unknown version": Kind(
        _after(lambda rng, data: data.replace(b"JFIF\0\1", b"JFIF\0\0", 1), _saved("JPEG")), 4
    ),
    **{
        f"JPEG subsampled {name}": Kind(_subsampled(*factors), 2)
        for name, factors in {
            "4:4:1": (0x14, 0x11, 0x11),
            "by thirds": (0x31, 0x11, 0x11),
            "each component otherwise": (0x22, 0x21, 0x11),
            "in its brightness": (0x11, 0x22, 0x22),
        }.items()
    },
    "palette PNG": Kind(_saved("PNG", "P"), 4),
    "palette PNG with transparent colours": Kind(_after_header(lambda header: _chunk(b"tRNS", bytes(200)), "P"), 2),
    "PNG with a transparent colour": Kind(_after_header(lambda header: _chunk(b"tRNS", bytes(6))), 2),
    "PNG with a wrong checksum of its pixels": Kind(_after(_with_wrong_checksum, _saved("PNG")), 2, DAMAGED),
    "PNG without its last chunk": Kind(_after(lambda rng, data: data[:-12], _saved("PNG")), 2, DAMAGED),
    "PNG with a second, larger header": Kind(
        _after_header(lambda header: _chunk(header[:4], b"\0\1\0\0" * 2 + header[12:])), 2, DAMAGED
    ),
    "1-bit PNG": Kind(_saved("PNG", "1"), 2),
    "grey and alpha PNG": Kind(_saved("PNG", "LA"), 4),
    "RGBA PNG": Kind(_saved("PNG", "RGBA"), 4),
    "16-bit grey PNG": Kind(_png(16, 0, False), 4),
    "16-bit RGB PNG": Kind(_png(16, 2, False), 4),
    "16-bit RGBA PNG, interlaced": Kind(_png(16, 6, True), 4),
    "interlaced PNG": Kind(_png(8, 2, True), 4),
    "lossless WebP": Kind(_saved("WEBP", lossless=True), 4),
    "WebP with alpha": Kind(_transparent, 4),
    "animated WebP with alpha": Kind(_transparent_animation, 2, NO_IMAGE.format("an animated WebP")),
}  # fmt: skip
