"""Ops that decode images of one known size."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pipeline.decoding.encoded_images import (
    jpeg_header,
    jpeg_pixels,
    opened,
    pillow_pixels,
    png_size,
)
from pipeline.decoding.op import ImageOp, Size, Specs, spec_of
from pipeline.decoding.rng import Rng
from pipeline.errors import OptionError, SchemaError
from pipeline.spec import BYTES, ArraySpec

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by the type of colour of a PNG; 3: palette


def pixels_spec(op: ImageOp, specs: Specs, shape: tuple[int, int, int]) -> ArraySpec:
    """uint8 with this shape, which `op` decodes from the feature it reads. SchemaError unless that
    is one bytes value."""
    spec = spec_of(op, op.key, specs)
    if spec.dtype != BYTES or spec.shape != ():
        raise SchemaError(
            f"{op!r}: {op.key!r} is {spec.dtype} {spec.shape}; it must be one bytes value."
        )
    return ArraySpec(shape, np.dtype(np.uint8))


@dataclass(frozen=True)
class _Decode(ImageOp):
    key: str
    into: str = "image"
    shape: tuple[int, int, int] = (224, 224, 3)

    def __post_init__(self) -> None:
        shape = self.shape if isinstance(self.shape, Sequence) else ()
        if len(shape) != 3 or shape[2] not in (1, 3) or min(shape) < 1:
            raise OptionError(
                f"{self!r}: shape must be (height, width, 1) for grey or (height, width, 3) for "
                "RGB."
            )

    def _spec(self, specs: Specs) -> ArraySpec:
        return pixels_spec(self, specs, self.shape)

    def _check_size(self, size: Size | None, what: str) -> None:
        """Raises SchemaError before anything is decoded. what: the wrong value."""
        height, width, _ = self.shape
        if size != (height, width):
            note = f" Its height and width are {size[0]} and {size[1]}." if size else ""
            raise SchemaError(
                f"{self.key!r} is {what} of a size other than the {height} x {width} of {self!r}. "
                "DecodeResize, DecodeCentralCrop and DecodeRandomResizedCrop take images of any "
                f"size.{note}"
            )


class DecodeJpeg(_Decode):
    """Decodes a JPEG of a known size to `into`: uint8 [height, width, channels], 1 channel (grey)
    or 3 (RGB).

    An image of another size is an error that names both sizes and is not decoded, so a small file
    that claims to be huge costs nothing. Uses the exact DCT."""

    def _image(self, value: bytes, _rng: Rng, /) -> np.ndarray:
        header = jpeg_header(value)
        self._check_size(header.size, "a JPEG")
        return jpeg_pixels(value, header, self.shape[2])


class DecodePng(_Decode):
    """Decodes a PNG of a known size to `into`: uint8 [height, width, channels], 1 channel (grey) or
    3 (RGB). Exact.

    An image of another size, or that is not a PNG, is an error that names both sizes and is not
    decoded, so a small file that claims to be huge costs nothing."""

    def _image(self, value: bytes, _rng: Rng, /) -> np.ndarray:
        self._check_size(png_size(value), "not a PNG, or a PNG")
        return pillow_pixels(value, "PNG", self.shape[:2], self.shape[2])


@dataclass(frozen=True)
class DecodeStored(_Decode):
    """Decodes a PNG whose values mean something, such as a mask or depths, to `into`: exactly the
    values stored, [height, width, channels] of `dtype`.

    A palette yields its indices, and grey of 1, 2 or 4 bits what these count, as uint8; grey of 16
    bits is uint16. channels: 1, 2 (with alpha), 3 or 4. An image of another size, number of
    channels or dtype is an error that states both, and is not decoded."""

    shape: tuple[int, int, int] = (224, 224, 1)
    dtype: Literal["uint8", "uint16"] = "uint8"

    def __post_init__(self) -> None:
        channels = {"uint8": 4, "uint16": 1}.get(self.dtype, 0)  # Pillow cuts colours of 16 bits
        if len(self.shape) != 3 or min(self.shape) < 1 or self.shape[2] > channels:
            raise OptionError(
                f"{self!r}: shape must be (height, width, channels), with 1 to 4 channels of dtype "
                "'uint8', or 1 of 'uint16'."
            )

    def _spec(self, specs: Specs) -> ArraySpec:
        return replace(super()._spec(specs), dtype=np.dtype(self.dtype))

    def _image(self, value: bytes, _rng: Rng, /) -> np.ndarray:
        size = png_size(value) or ()
        depth, colour = value[24:26] if size else (8, 0)
        dtype = "uint16" if depth == 16 else "uint8"
        shape = (*size, _CHANNELS.get(colour, 0))
        if (dtype, shape) != (self.dtype, tuple(self.shape)):
            raise SchemaError(
                f"{self.key!r} is {f'a PNG of {dtype} {shape}' if size else 'not a PNG'}, unlike "
                f"the shape and dtype of {self!r}. State those of the images, or leave such "
                "records out with on_error."
            )
        pixels = np.asarray(opened(value, "PNG", self.shape[:2]))
        if colour == 0 and 1 < depth < 8:  # Pillow spreads these to 255
            pixels = pixels // (255 // (2**depth - 1))
        return pixels.astype(dtype).reshape(shape)
