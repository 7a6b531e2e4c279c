"""JPEG headers, read without decoding, and the repairs that ImageNet needs.

Repairs go by content, never by lists of names: a PNG named .JPEG and CMYK photos become RGB JPEGs
of quality 100."""

import io
import math
import re
import struct
import subprocess
from dataclasses import dataclass, replace
from typing import BinaryIO, Literal, get_args

import numpy as np
import simplejpeg
from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile

from pipeline.errors import InfeedError, OptionError, Reject
from pipeline.packages import how_to_install
from pipeline.raw.jpeg_parts import END, frames, grid_of, unit

Verify = Literal["header", "end", "decode"]
MAX_PIXELS = 100_000_000  # 300 MB decoded; larger images count as decompression bombs
VERIFY_LEVELS = get_args(Verify)

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
HEIC = rb"(?s)....ftyp(?!.{0,28}avi[fs])(he[iv][cxms]|m[is]f1)"
"""How the files of iPhones begin, as a regular expression. AVIF has the same container."""
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
        unit_w = unit(self.data, next(frames(self.data)))[1]
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
        if done.returncode or not grid_of(done.stdout):
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
        or (verify == "end" and not data.rstrip(b"\0\r\n").endswith(END))
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
        height, width, components = struct.unpack_from(">HHB", data, next(frames(data)))
        return height, width, components
    except (IndexError, struct.error):
        raise Reject(f"truncated JPEG: no frame header in its {len(data)} bytes") from None


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


def heic_image(file: BinaryIO) -> ImageFile:
    """A HEIC file, turned upright, without its EXIF orientation. Raises InfeedError without
    pillow-heif, and UNREADABLE."""
    try:
        from pillow_heif import HeifImageFile
    except ImportError as e:
        raise InfeedError(
            f"HEIC images need pillow-heif ({e}). Install it: {how_to_install('heic')}."
        ) from e
    return HeifImageFile(file)


def open_image(data: bytes, formats: tuple[str, ...] | None = None) -> ImageFile:
    """A HEIC, or a file in one of these formats of Pillow's; None: any. Only its header is read.
    Raises InfeedError without pillow-heif, and UNREADABLE."""
    file = io.BytesIO(data)
    return heic_image(file) if re.match(HEIC, data) else Image.open(file, formats=formats)


def decode_image(data: bytes, formats: tuple[str, ...] | None = None) -> Image.Image:
    """All pixels of a file; see open_image. Raises Reject, and InfeedError without pillow-heif."""
    try:
        image = open_image(data, formats)
        check_size(image.height, image.width)
        image.load()
    # its text contains a memory address, and the ledger of every run must be the same
    except UnidentifiedImageError:
        raise Reject("truncated or damaged image: its header cannot be read") from None
    except UNREADABLE as e:
        raise Reject(f"truncated or damaged image: {str(e)[:200]}") from None
    return image
