"""Ops that decode images of one known size."""

import struct
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.decoding.encoded import pixels_spec
from pipeline.decoding.image_op import ImageOp
from pipeline.decoding.op import Specs
from pipeline.shards.errors import OptionError
from pipeline.spec import ArraySpec
from pipeline.tf_cpu import tf

__all__ = ["DecodeJpeg", "DecodePng"]

_PNG_BEGINS = struct.unpack(">4i", b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR")  # its first 16 bytes


@dataclass(frozen=True)
class _Decode(ImageOp):
    """What both image formats share. A subclass says whether the size is right without decoding, and decodes."""

    _wrong: ClassVar[str]  # what the value holds when the size is wrong

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

    def _image(self, value: Any, seed: Any) -> Any:
        del seed
        right, size = self._check(value)
        height, width, _ = self.shape
        wanted = (
            f"{self.key!r} holds {self._wrong} of another size than the {height} x {width} of {self!r}. DecodeResize, "
            "DecodeCentralCrop and DecodeRandomResizedCrop take images of any size. Its height and width are"
        )
        # The raw op: tf.debugging.Assert adds a conditional to the graph, which costs 12 us an image.
        with tf.control_dependencies([tf.raw_ops.Assert(condition=right, data=[wanted, size], summarize=2)]):
            image = self._decode(value)
        return tf.ensure_shape(image, self.shape)

    def _check(self, encoded: Any) -> tuple[Any, Any]:
        """(whether the size is right, [height, width])."""
        raise NotImplementedError

    def _decode(self, encoded: Any) -> Any:
        """The pixels: uint8 with the channels wanted."""
        raise NotImplementedError


class DecodeJpeg(_Decode):
    """Decodes a JPEG of a known size to `into`: uint8 [height, width, channels], 1 channel (grey) or 3 (RGB).

    A record whose image has another size is an error that names both; nothing of it is decoded first, so a small
    file that claims to be huge costs nothing. The exact DCT, because TensorFlow's default is 0.8 levels too dark."""

    _wrong = "a JPEG"

    def _check(self, encoded: Any) -> tuple[Any, Any]:
        size = tf.io.extract_jpeg_shape(encoded)[:2]
        return tf.reduce_all(size == self.shape[:2]), size

    def _decode(self, encoded: Any) -> Any:
        return tf.io.decode_jpeg(encoded, channels=self.shape[2], dct_method="INTEGER_ACCURATE")


class DecodePng(_Decode):
    """Decodes a PNG of a known size to `into`: uint8 [height, width, channels], 1 channel (grey) or 3 (RGB). Exact.

    A record whose image has another size, or is no PNG, is an error that names both sizes; nothing of it is decoded
    first, so a small file that claims to be huge costs nothing."""

    _wrong = "no PNG, or one"

    def _check(self, encoded: Any) -> tuple[Any, Any]:
        # Signature (8 bytes), length and type of the first chunk (8), width, height: https://www.w3.org/TR/png-3/
        header = tf.io.decode_raw(encoded, tf.int32, little_endian=False, fixed_length=24)
        height, width, _ = self.shape
        return tf.reduce_all(header == [*_PNG_BEGINS, width, height]), header[:3:-1]

    def _decode(self, encoded: Any) -> Any:
        return tf.io.decode_png(encoded, channels=self.shape[2])
