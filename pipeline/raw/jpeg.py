"""JPEG headers, read without decoding, and the repairs that ImageNet needs.

Repairs go by content, never by lists of names: a PNG named .JPEG and CMYK photos become RGB JPEGs
of quality 100."""

import io
import math
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import numpy as np
import simplejpeg
from PIL import Image, UnidentifiedImageError

from pipeline.errors import OptionError, Reject

Verify = Literal["header", "end", "decode"]
MAX_PIXELS = 100_000_000  # 300 MB decoded; larger images count as decompression bombs
VERIFY_LEVELS = get_args(Verify)

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_END = b"\xff\xd9"
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0..15 without DHT, JPG, DAC
# RSTn and TEM have no length; nor has a stuffed zero, which is not a marker: libjpeg skips it
_BARE_MARKERS = frozenset(range(0xD0, 0xD8)) | {0x00, 0x01}
_RESTART, _SCAN, _INTERVAL = 0xD0, 0xDA, 0xDD  # RST0, SOS, DRI
_BASELINE = frozenset((0xC0, 0xC1))  # and extended; the others have several scans
_MOST_KEPT = 0.9
_USUAL_INTERVAL = 4  # of more, larger parts are kept; fewer make files larger
NOT_RESTARTED = "no restart markers were written, because jpegtran refused or warned"
# a small file may state thousands of scans of a hundred million pixels
_MAX_SCANS, _MAX_SECONDS = "500", 60
_NO_JPEGTRAN = (
    "--restart-markers needs jpegtran of libjpeg-turbo (Debian: libjpeg-turbo-progs) where the "
    "conversion runs. Install it, or leave the option out. Trying it gave: {}"
)

UNREADABLE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    RuntimeError,  # of AVIF and DDS
    struct.error,
    Image.DecompressionBombError,
)
"""What Pillow raises for bytes that are not an image, or a damaged one."""


@dataclass(frozen=True)
class Jpeg:
    """An RGB or grey JPEG file. fixups, notes: see Converted."""

    data: bytes
    height: int
    width: int
    fixups: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(
        image: Image.Image, quality: int, fixups: tuple[str, ...] = (), notes: tuple[str, ...] = ()
    ) -> "Jpeg":
        """The image as a file."""
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        return Jpeg(buffer.getvalue(), image.height, image.width, fixups, notes)

    def restarted(self) -> "Jpeg":
        """A file with the same pixels and with restart markers, which `part_of` can cut. jpegtran
        of libjpeg-turbo rewrites it without loss, in about 5 ms, and drops what follows its end. A
        usual file becomes 2 % smaller, an optimized one up to 7 % larger, a progressive one up to
        14 %.

        Returns the image unchanged, with a note, if jpegtran warns. Raises Reject if jpegtran does
        not end, OptionError if it cannot run."""
        unit_w = _unit(self.data, next(_frames(self.data)))[1]
        units = -(-self.width // unit_w)
        divisors = (n for n in range(1, units + 1) if units % n == 0)  # all rows alike
        interval = min(divisors, key=lambda n: abs(math.log(n / _USUAL_INTERVAL)))
        flags = ["-copy", "all", "-optimize", "-restart", f"{interval}B", "-maxscans", _MAX_SCANS]
        try:
            done = subprocess.run(
                ["jpegtran", *flags],
                input=self.data,
                capture_output=True,
                check=False,
                timeout=_MAX_SECONDS,
            )
        except OSError as e:
            raise OptionError(_NO_JPEGTRAN.format(e)) from None
        except subprocess.TimeoutExpired:
            raise Reject(f"jpegtran did not end within {_MAX_SECONDS} s") from None
        if done.returncode not in (0, 1, 2):  # of its own, for errors and warnings
            found = f"exit code {done.returncode}, {done.stderr[:200]!r}"
            raise OptionError(_NO_JPEGTRAN.format(found))
        if done.returncode or not _grid(done.stdout):
            return replace(self, notes=(*self.notes, NOT_RESTARTED))
        return replace(self, data=done.stdout)


def check_jpegtran() -> None:
    """Raises OptionError if `Jpeg.restarted` would write no markers."""
    try:
        notes = Jpeg.of(Image.new("RGB", (64, 64)), 95).restarted().notes
    except Reject as e:
        raise OptionError(_NO_JPEGTRAN.format(e)) from None
    if notes:
        raise OptionError(_NO_JPEGTRAN.format(*notes))


def to_rgb_jpeg(data: bytes, verify: Verify) -> Jpeg:
    """The image as a JPEG that every decoder accepts. Raises Reject with the reason.

    verify: "header" parses the frame header (~1 us; misses truncation), "end" also requires the end
    marker (~1 us; misses damage before it), "decode" decodes every pixel (~1 ms)."""
    if data.startswith(PNG_MAGIC):
        return Jpeg.of(decode_image(data, ("JPEG", "PNG")).convert("RGB"), 100, ("png_to_jpeg",))
    height, width, components = frame_header(data)
    check_size(height, width)
    # Some writers append bytes: if the end marker is not at the very end, decode the image to find
    # out.
    if (
        components == 4
        or verify == "decode"
        or (verify == "end" and not data.rstrip(b"\0\r\n").endswith(_END))
    ):
        decode_jpeg(data)
    if components == 4:
        return Jpeg.of(decode_image(data, ("JPEG", "PNG")).convert("RGB"), 100, ("cmyk_to_rgb",))
    return Jpeg(data, height, width)


def frame_header(data: bytes) -> tuple[int, int, int]:
    """(height, width, components) from the SOF segment, the one that libjpeg finds. Raises
    Reject."""
    if not data.startswith(b"\xff\xd8"):
        raise Reject("not a JPEG or PNG file. Convert it to one, or leave it out")
    try:
        height, width, components = struct.unpack_from(">HHB", data, next(_frames(data)))
        return height, width, components
    except (IndexError, struct.error):
        raise Reject(f"truncated JPEG: no frame header in its {len(data)} bytes") from None


def _frames(data: bytes) -> Iterator[int]:
    """Where the heights of images begin; there should be one. Raises as _segments."""
    return (at + 3 for marker, at in _segments(data) if marker in _FRAME_MARKERS)


def _unit(data: bytes, frame: int) -> tuple[int, int]:
    """Height and width of the pixels in which all components take turns. frame: see _frames."""
    components = data[frame + 4]
    # a single component takes no turns, whatever its factors are
    factors = data[frame + 6 :][: 3 * components : 3] if components > 1 else b"\x11"
    # 1 where damage makes it 0
    return 8 * max((1, *(f & 15 for f in factors))), 8 * max((1, *(f >> 4 for f in factors)))


def _segments(data: bytes) -> Iterator[tuple[int, int]]:
    """The markers in turn, and the place after each. Raises IndexError or struct.error where the
    data ends."""
    position = 2
    while True:
        while data[position] != 0xFF:
            position += 1
        while data[position] == 0xFF:  # fill bytes
            position += 1
        marker = data[position]
        position += 1
        yield marker, position
        if marker not in _BARE_MARKERS:
            position += struct.unpack_from(">H", data, position)[0]


class Part(NamedTuple):
    """A JPEG of a part of another one. size: its height and width. top, left: pixels of the other
    one that are above it and to its left."""

    data: bytes
    size: tuple[int, int]
    top: int
    left: int


class _Grid(NamedTuple):
    """Where a JPEG may be cut. frame, scan: the places of its height and of its pixels. size: its
    height and width. cell: those of what lies between two restart markers. margin: the width of a
    unit; a cell is one or more units wide."""

    frame: int
    scan: int
    size: tuple[int, int]
    cell: tuple[int, int]
    margin: int


def part_of(data: bytes, window: tuple[int, int, int, int]) -> Part | None:
    """A JPEG that decodes to the same pixels in the window (y, x, height, width), cut out at
    restart markers.

    None if that saves little, and for a JPEG that cannot be cut: a progressive one, and one whose
    markers are not below each other, or are damaged. Damage outside of the part is not noticed.
    Takes about 50 us, half of it to find the markers."""
    grid = _grid(data)
    if grid is None or not data.endswith(_END):
        return None
    y, x, h, w = window
    (height, width), (cell_h, cell_w) = grid.size, grid.cell
    rows, columns = -(-height // cell_h), -(-width // cell_w)
    # with the unit around the window, from which its chroma is interpolated
    top, bottom = max(y // cell_h - 1, 0), min(-(-(y + h) // cell_h) + 1, rows)
    left = max((x - grid.margin) // cell_w, 0)
    right = min(-(-(x + w + grid.margin) // cell_w), columns)
    if (bottom - top) * (right - left) > _MOST_KEPT * rows * columns:
        return None
    array = np.frombuffer(data, np.uint8)
    places = grid.scan + np.flatnonzero(array[grid.scan : -1] == 0xFF)
    markers = places[array[places + 1] & 0xF8 == _RESTART]
    numbers = np.arange(len(markers)) & 7
    # the header may state any number of rows
    if len(markers) != rows * columns - 1 or (array[markers + 1] & 7 != numbers).any():
        return None
    begins = np.insert(markers + 2, 0, grid.scan).reshape(rows, columns)[top:bottom, left:right]
    ends = np.append(markers + 2, len(data)).reshape(rows, columns)[top:bottom, left:right]
    head = bytearray(data[: grid.scan])
    size = min(height, bottom * cell_h) - top * cell_h, min(width, right * cell_w) - left * cell_w
    struct.pack_into(">HH", head, grid.frame, *size)
    pairs = zip(begins[:, 0].tolist(), ends[:, -1].tolist(), strict=True)
    part = bytearray().join([head, *(data[begin:end] for begin, end in pairs)])
    after = grid.scan + np.cumsum(ends - begins)
    np.frombuffer(part, np.uint8)[after - 1] = _RESTART + (np.arange(len(after)) & 7)
    part[-2:] = _END
    return Part(bytes(part), size, top * cell_h, left * cell_w)


def _grid(data: bytes) -> _Grid | None:
    """None if it cannot be cut."""
    places = dict[int, int]()
    try:
        for marker, at in _segments(data):
            places[marker] = at
            if marker == _SCAN:
                break
        frames = _FRAME_MARKERS & places.keys()
        if len(frames) != 1 or not frames <= _BASELINE or _INTERVAL not in places:
            return None
        frame = 3 + places[min(frames)]
        height, width, components = struct.unpack_from(">HHB", data, frame)
        (interval,) = struct.unpack_from(">H", data, places[_INTERVAL] + 2)
        length, of_scan = struct.unpack_from(">HB", data, places[_SCAN])
        unit_h, unit_w = _unit(data, frame)
    except (IndexError, struct.error):
        return None
    if not interval or of_scan != components or -(-width // unit_w) % interval:
        return None
    scan = places[_SCAN] + length
    return _Grid(frame, scan, (height, width), (unit_h, interval * unit_w), unit_w)


def check_size(height: int, width: int) -> None:
    """Raises Reject for an image without pixels, and for a decompression bomb."""
    if not height or not width or height * width > MAX_PIXELS:
        raise Reject(f"{width}x{height} pixels; allowed are 1 to {MAX_PIXELS:,}")


def decode_jpeg(data: bytes) -> np.ndarray:
    """uint8 [height, width, channels]: grey, RGB or CMYK, as in the file. Raises Reject for damage,
    or a size out of bounds. Pillow would accept a file that ends early with an end marker, and fill
    the rest with grey."""
    height, width, components = frame_header(data)
    check_size(height, width)
    try:
        return simplejpeg.decode_jpeg(
            data, colorspace={1: "GRAY", 4: "CMYK"}.get(components, "RGB"), strict=True
        )
    except ValueError as e:
        raise Reject(f"truncated or damaged JPEG: {e}") from None


def decode_image(data: bytes, formats: tuple[str, ...] | None = None) -> Image.Image:
    """All pixels of a file in one of these formats of Pillow's; None: any. Raises Reject."""
    try:
        image = Image.open(io.BytesIO(data), formats=formats)
        check_size(image.height, image.width)
        image.load()
    # its text contains a memory address, and the ledger of every run must be the same
    except UnidentifiedImageError:
        raise Reject("truncated or damaged image: its header cannot be read") from None
    except UNREADABLE as e:
        raise Reject(f"truncated or damaged image: {str(e)[:200]}") from None
    return image
