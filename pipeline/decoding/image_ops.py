"""Ops that decode images of one known size."""

import struct
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pipeline.decoding.encoded import pixels_spec
from pipeline.decoding.image_op import ImageOp
from pipeline.decoding.op import Specs
from pipeline.errors import OptionError
from pipeline.spec import ArraySpec
from pipeline.tf_cpu import tf

__all__ = ["DecodeJpeg", "DecodePng"]

_PNG_BEGINS = struct.unpack(">4i", b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR")  # its first 16 bytes


@dataclass(frozen=True)
class _Decode(ImageOp):
    key: str
    into: str = "image"
    shape: tuple[int, int, int] = (224, 224, 3)

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or self.shape[2] not in (1, 3) or min(self.shape) < 1:
            raise OptionError(f"{self!r}: shape must be (height, width, 1) for grey or (height, width, 3) for RGB.")

    @property
    def _sets(self) -> str:
        return self.into

    def _spec(self, specs: Specs) -> ArraySpec:
        return pixels_spec(self, self.key, specs, self.shape)

    def _sized(self, right: Any, size: Any, what: str) -> AbstractContextManager[Any]:
        """Fails in the graph, naming both sizes, unless `right`. Decoding waits for it. what: the wrong value."""
        height, width, _ = self.shape
        wanted = (
            f"{self.key!r} is {what} of a size other than the {height} x {width} of {self!r}. DecodeResize, "
            "DecodeCentralCrop and DecodeRandomResizedCrop take images of any size. Its height and width are"
        )
        # The raw op: tf.debugging.Assert adds a conditional to the graph, which costs 12 us per image.
        return tf.control_dependencies([tf.raw_ops.Assert(condition=right, data=[wanted, size], summarize=2)])


class DecodeJpeg(_Decode):
    """Decodes a JPEG of a known size to `into`: uint8 [height, width, channels], 1 channel (grey) or 3 (RGB).

    An image of another size is an error that names both sizes and is not decoded, so a small file that claims to be
    huge costs nothing. Uses the exact DCT, because TensorFlow's default is 0.8 levels too dark."""

    def _image(self, value: Any, _seed: Any, /) -> Any:
        size = tf.io.extract_jpeg_shape(value)[:2]
        with self._sized(tf.reduce_all(size == self.shape[:2]), size, "a JPEG"):
            image = tf.io.decode_jpeg(value, channels=self.shape[2], dct_method="INTEGER_ACCURATE")
        return tf.ensure_shape(image, self.shape)


class DecodePng(_Decode):
    """Decodes a PNG of a known size to `into`: uint8 [height, width, channels], 1 channel (grey) or 3 (RGB). Exact.

    An image of another size, or that is not a PNG, is an error that names both sizes and is not decoded, so a small
    file that claims to be huge costs nothing."""

    def _image(self, value: Any, _seed: Any, /) -> Any:
        # Signature (8 bytes), length and type of the first chunk (8), width, height: https://www.w3.org/TR/png-3/
        header = tf.io.decode_raw(value, tf.int32, little_endian=False, fixed_length=24)
        height, width, _ = self.shape
        right = tf.reduce_all(header == [*_PNG_BEGINS, width, height])
        with self._sized(right, header[:3:-1], "not a PNG, or a PNG"):
            image = tf.io.decode_png(value, channels=self.shape[2])
        return tf.ensure_shape(image, self.shape)
