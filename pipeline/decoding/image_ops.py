"""Ops that decode images of one known size."""

from dataclasses import dataclass

import numpy as np

from pipeline.decoding.encoded import jpeg_header, jpeg_pixels, pillow_pixels, pixels_spec, png_size
from pipeline.decoding.op import ImageOp, Specs
from pipeline.decoding.rng import Rng
from pipeline.errors import OptionError, SchemaError
from pipeline.spec import ArraySpec


@dataclass(frozen=True)
class _Decode(ImageOp):
    key: str
    into: str = "image"
    shape: tuple[int, int, int] = (224, 224, 3)

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or self.shape[2] not in (1, 3) or min(self.shape) < 1:
            raise OptionError(f"{self!r}: shape must be (height, width, 1) for grey or (height, width, 3) for RGB.")

    def _spec(self, specs: Specs) -> ArraySpec:
        return pixels_spec(self, self.key, specs, self.shape)

    def _check_size(self, size: tuple[int, int] | None, what: str) -> None:
        """Before anything is decoded. what: the wrong value."""
        height, width, _ = self.shape
        if size != (height, width):
            found = f" Its height and width are {size[0]} and {size[1]}." if size else ""
            raise SchemaError(
                f"{self.key!r} is {what} of a size other than the {height} x {width} of {self!r}. DecodeResize, "
                f"DecodeCentralCrop and DecodeRandomResizedCrop take images of any size.{found}"
            )


class DecodeJpeg(_Decode):
    """Decodes a JPEG of a known size to `into`: uint8 [height, width, channels], 1 channel (grey) or 3 (RGB).

    An image of another size is an error that names both sizes and is not decoded, so a small file that claims to be
    huge costs nothing. Uses the exact DCT."""

    def _image(self, value: bytes, _rng: Rng, /) -> np.ndarray:
        header = jpeg_header(value)
        self._check_size(header.size, "a JPEG")
        return jpeg_pixels(value, header, self.shape[2])


class DecodePng(_Decode):
    """Decodes a PNG of a known size to `into`: uint8 [height, width, channels], 1 channel (grey) or 3 (RGB). Exact.

    An image of another size, or that is not a PNG, is an error that names both sizes and is not decoded, so a small
    file that claims to be huge costs nothing."""

    def _image(self, value: bytes, _rng: Rng, /) -> np.ndarray:
        self._check_size(png_size(value), "not a PNG, or a PNG")
        return pillow_pixels(value, "PNG", self.shape[:2], self.shape[2])
