"""Images as they are stored: their format and size, told from their content, and the pixels of a window of them.

EXIF is ignored, its rotation too, as other readers do."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pipeline.decoding.op import Op, Specs, spec_of
from pipeline.shards.errors import SchemaError
from pipeline.spec import BYTES, ArraySpec
from pipeline.tf_cpu import tf

__all__ = ["decoded_window", "pixels_spec"]

_HEAD_BYTES = 30  # the longest header that tells a size: WebP's
_PNG = b"\x89PNG\r\n\x1a\n"


def pixels_spec(op: Op, key: str, specs: Specs, shape: tuple[int, int, int]) -> ArraySpec:
    """uint8 of this shape, which `op` decodes from `key`. SchemaError unless that is one bytes value."""
    spec = spec_of(op, key, specs)
    if spec.dtype != BYTES or spec.shape != ():
        raise SchemaError(f"{op!r}: {key!r} is {spec.dtype} {spec.shape}; it must be one bytes value.")
    return ArraySpec(shape, np.dtype(np.uint8))


def decoded_window(
    encoded: Any, window: Callable[[Any], Any], channels: int, max_pixels: int, key: str
) -> tuple[Any, Any]:
    """(pixels, window): uint8 [h, w, channels] of the window that `window` chooses, and its [y, x, h, w] (int32).

    window: int32 [2], height and width of the whole image -> [y, x, h, w] inside of it. Of a JPEG only the window is
    decoded; PNG and WebP are decoded whole. InvalidArgumentError, with `key`, for anything else, for more pixels than
    max_pixels, and for a damaged image."""
    head = tf.cast(tf.io.decode_raw(encoded, tf.uint8, fixed_length=_HEAD_BYTES), tf.int32)
    is_jpeg = tf.reduce_all(head[:3] == [0xFF, 0xD8, 0xFF])

    def checked(size: Any) -> Any:
        small = tf.cast(size[0], tf.int64) * tf.cast(size[1], tf.int64) <= max_pixels
        said = f"{key!r} has more pixels than max_pixels={max_pixels}: its height and width are"
        # The raw op: tf.debugging.Assert adds a conditional to the graph, which costs 12 us an image.
        with tf.control_dependencies([tf.raw_ops.Assert(condition=small, data=[said, size], summarize=2)]):
            return window(tf.identity(size))

    def of_jpeg() -> tuple[Any, Any]:
        shape = tf.io.extract_jpeg_shape(encoded)
        chosen = checked(shape[:2])

        def cropped(channels: int) -> Any:
            # The exact DCT, because TensorFlow's default is 0.8 levels too dark.
            return tf.io.decode_and_crop_jpeg(encoded, chosen, channels=channels, dct_method="INTEGER_ACCURATE")

        if channels == 3:
            return cropped(3), chosen
        return tf.cond(shape[2] == 4, lambda: _grey(cropped(3)), lambda: cropped(1)), chosen  # 4: CMYK

    def of_others() -> tuple[Any, Any]:
        chosen = checked(_size_of_others(head, encoded, key))
        begin, size = tf.split(chosen, 2)
        with tf.control_dependencies([chosen]):  # or it is decoded, however large, before its header is looked at
            colours = tf.io.decode_image(encoded, channels=3, expand_animations=False)  # WebP comes in no other way
        pixels = tf.slice(colours, tf.concat([begin, [0]], 0), tf.concat([size, [3]], 0))
        return pixels if channels == 3 else _grey(pixels), chosen

    pixels, chosen = tf.cond(is_jpeg, of_jpeg, of_others)
    return tf.ensure_shape(pixels, [None, None, channels]), tf.ensure_shape(chosen, [4])


def _grey(colours: Any) -> Any:
    """The luma of RGB (ITU-R BT.601), as in a JPEG's own."""
    weighted = tf.cast(colours, tf.float32) * [0.299, 0.587, 0.114]
    return tf.cast(tf.round(tf.reduce_sum(weighted, -1, keepdims=True)), tf.uint8)


def _size_of_others(head: Any, encoded: Any, key: str) -> Any:
    """[height, width] of a PNG (https://www.w3.org/TR/png-3/) or a WebP (https://www.rfc-editor.org/rfc/rfc9649)."""

    def big_endian(at: int) -> Any:
        return tf.reduce_sum(head[at : at + 4] * [1 << 24, 1 << 16, 1 << 8, 1])

    def little_endian(at: int, count: int) -> Any:
        return tf.reduce_sum(head[at : at + count] * [1 << 8 * i for i in range(count)])

    is_png = tf.reduce_all(head[:16] == [*_PNG, 0, 0, 0, 13, *b"IHDR"])
    is_webp = tf.reduce_all(head[:4] == [*b"RIFF"]) & tf.reduce_all(head[8:15] == [*b"WEBPVP8"])
    packed = little_endian(21, 4)
    sizes = {
        " ": [little_endian(28, 2) & 0x3FFF, little_endian(26, 2) & 0x3FFF],
        "L": [1 + (tf.bitwise.right_shift(packed, 14) & 0x3FFF), 1 + (packed & 0x3FFF)],
        "X": [1 + little_endian(27, 3), 1 + little_endian(24, 3)],
    }
    webp = tf.zeros(2, tf.int32)
    for kind, size in sizes.items():
        webp = tf.where(head[15] == ord(kind), tf.stack(size), webp)
    size = tf.where(is_png, tf.stack([big_endian(20), big_endian(16)]), tf.where(is_webp, webp, 0))
    said = f"{key!r} holds no JPEG, PNG or WebP image. It begins with"
    known = tf.reduce_min(size) > 0
    with tf.control_dependencies([tf.raw_ops.Assert(condition=known, data=[said, tf.strings.substr(encoded, 0, 12)])]):
        return tf.identity(size)
