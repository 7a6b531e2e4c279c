"""What the ops that decode images compute, in a graph: JPEG, PNG and WebP to uint8 [height, width, channels].

Pixels may differ from those of the ops by rounding: TensorFlow has its own decoders and resizes in float32. For images
that cannot be decoded the graph raises InvalidArgumentError."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pipeline.decoding.op import Features
from pipeline.ops import DecodeCentralCrop, DecodeJpeg, DecodePng, DecodeResize
from pipeline.tf_cpu import tf

_HEAD_BYTES = 30  # the longest header up to the size: WebP's
_PNG = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"  # its first 16 bytes: https://www.w3.org/TR/png-3/


def _fixed_jpeg(op: DecodeJpeg, features: Features) -> Features:
    encoded = features[op.key]
    encoded = _of_size(op, encoded, tf.io.extract_jpeg_shape(encoded)[:2], "a JPEG")
    return {op.into: tf.ensure_shape(_jpeg_pixels(encoded, op.shape[2]), op.shape)}


def _fixed_png(op: DecodePng, features: Features) -> Features:
    encoded = features[op.key]
    encoded = _of_size(op, encoded, _png_size(_head(encoded)), "not a PNG, or a PNG")
    return {op.into: tf.ensure_shape(_in_channels(tf.io.decode_png(encoded, channels=3), op.shape[2]), op.shape)}


def _central_crop(op: DecodeCentralCrop, features: Features) -> Features:
    pixels, side = _photo(op, features[op.key]), op.size[0]
    height_width = tf.shape(pixels)[:2]
    shorter = tf.cast(tf.reduce_min(height_width), tf.float32)
    if op.resize_short is None:
        # float32, as in https://github.com/tensorflow/tpu/blob/master/models/official/resnet/resnet_preprocessing.py
        square = tf.maximum(tf.cast(np.float32(side / (side + op.border)) * shorter, tf.int32), 1)
        image = _resized(op, _window(pixels, (height_width - square + 1) // 2, square), op.size)
    else:
        ratio = np.float32(op.resize_short) / shorter
        small = tf.cast(tf.round(tf.cast(height_width, tf.float32) * ratio), tf.int32)
        image = _window(_resized(op, pixels, small), (small - side) // 2, side)
    return {op.into: tf.ensure_shape(image, (*op.size, op.channels))}


def _resize(op: DecodeResize, features: Features) -> Features:
    pixels, size = _photo(op, features[op.key]), tf.constant(op.size)
    if op.fit == "stretch":
        return {op.into: _resized(op, pixels, op.size)}
    height_width = tf.cast(tf.shape(pixels)[:2], tf.float64)
    scale = tf.reduce_min(tf.cast(size, tf.float64) / height_width)
    inner = tf.maximum(tf.cast(tf.round(height_width * scale), tf.int32), 1)
    before = (size - inner) // 2
    padding = tf.pad(tf.stack([before, size - inner - before], 1), [[0, 1], [0, 0]])
    return {op.into: tf.ensure_shape(tf.pad(_resized(op, pixels, inner), padding), (*op.size, op.channels))}


TWINS: Mapping[type, Callable[[Any, Features], Features]] = {
    DecodeJpeg: _fixed_jpeg,
    DecodePng: _fixed_png,
    DecodeCentralCrop: _central_crop,
    DecodeResize: _resize,
}
"""Op -> what computes the same from the features of one record. Its keys are IMAGE_OPS."""


def _of_size(op: DecodeJpeg | DecodePng, encoded: Any, size: Any, what: str) -> Any:
    height, width, _ = op.shape
    said = f"{op.key!r} is {what} of a size other than {height} x {width}. Its height and width are"
    return checked(encoded, tf.reduce_all(size == op.shape[:2]), [said, size])


def _photo(op: DecodeCentralCrop | DecodeResize, encoded: Any) -> Any:
    """uint8 [h, w, channels] of a JPEG, a PNG or a still WebP of up to max_pixels pixels."""
    is_jpeg = tf.strings.substr(encoded, 0, 3) == b"\xff\xd8\xff"
    size = tf.cond(is_jpeg, lambda: tf.io.extract_jpeg_shape(encoded)[:2], lambda: _png_or_webp_size(encoded, op.key))
    said = f"{op.key!r} has more pixels than max_pixels={op.max_pixels}. Its height and width are"
    # What is decoded follows from the check: branches do not preserve an order.
    encoded = checked(encoded, tf.reduce_prod(tf.cast(size, tf.int64)) <= op.max_pixels, [said, size])
    pixels = tf.cond(
        is_jpeg,
        lambda: _jpeg_pixels(encoded, op.channels),
        lambda: _in_channels(_png_or_webp_pixels(encoded), op.channels),
    )
    return tf.ensure_shape(pixels, [None, None, op.channels])


def _jpeg_pixels(encoded: Any, channels: int) -> Any:
    def decoded(channels: int) -> Any:
        # The exact DCT: TensorFlow's default is 0.8 levels too dark.
        return tf.io.decode_jpeg(encoded, channels=channels, dct_method="INTEGER_ACCURATE")

    if channels == 3:
        return decoded(3)
    is_cmyk = tf.io.extract_jpeg_shape(encoded)[2] == 4
    return tf.cond(is_cmyk, lambda: _in_channels(decoded(3), 1), lambda: decoded(1))


def _png_or_webp_pixels(encoded: Any) -> Any:
    """uint8 [h, w, 3]. The WebP must be still: for an animation, TensorFlow 2.21 writes out of bounds."""
    is_png = tf.strings.substr(encoded, 0, 4) == _PNG[:4]
    # channels=0: any other number is an error either for a WebP with alpha or for one without.
    return tf.cond(
        is_png,
        lambda: tf.io.decode_png(encoded, channels=3),
        lambda: tf.io.decode_webp(encoded, channels=0)[0, :, :, :3],
    )


def _in_channels(colours: Any, channels: int) -> Any:
    """RGB, or its luma (ITU-R BT.601), as in a JPEG's own."""
    if channels == 3:
        return colours
    weighted = tf.cast(colours, tf.float32) * [0.299, 0.587, 0.114]
    return tf.cast(tf.round(tf.reduce_sum(weighted, -1, keepdims=True)), tf.uint8)


def _head(encoded: Any) -> Any:
    """The first bytes as int32 [30], with zeros if there are fewer."""
    return tf.cast(tf.io.decode_raw(encoded, tf.uint8, fixed_length=_HEAD_BYTES), tf.int32)


def _png_size(head: Any) -> Any:
    """int32 [2], height and width; zeros for other data."""
    sides = tf.reduce_sum(tf.reshape(head[16:24], [2, 4]) * [1 << 24, 1 << 16, 1 << 8, 1], 1)
    return tf.where(tf.reduce_all(head[:16] == [*_PNG]), sides[::-1], 0)


def _webp_size(head: Any) -> Any:
    """int32 [2], height and width; zeros for other data and animations. https://www.rfc-editor.org/rfc/rfc9649."""

    def number(at: int, count: int) -> Any:
        return tf.reduce_sum(head[at : at + count] * [1 << 8 * i for i in range(count)])

    packed = number(21, 4)
    sizes = {
        " ": [number(28, 2) & 0x3FFF, number(26, 2) & 0x3FFF],
        "L": [1 + (tf.bitwise.right_shift(packed, 14) & 0x3FFF), 1 + (packed & 0x3FFF)],
        "X": [1 + number(27, 3), 1 + number(24, 3)],
    }
    found = tf.zeros(2, tf.int32)
    for kind, size in sizes.items():
        found = tf.where(head[15] == ord(kind), tf.stack(size), found)
    animated = (head[15] == ord("X")) & (head[20] & 2 > 0)
    is_webp = tf.reduce_all(tf.gather(head, [*range(4), *range(8, 15)]) == [*b"RIFFWEBPVP8"])
    return tf.where(is_webp & ~animated, found, 0)


def _png_or_webp_size(encoded: Any, key: str) -> Any:
    head = _head(encoded)
    size = tf.maximum(_png_size(head), _webp_size(head))
    return checked(size, tf.reduce_min(size) > 0, [f"{key!r} is none of these: a JPEG, a PNG, a still WebP"])


def _window(pixels: Any, corner: Any, side: Any) -> Any:
    return tf.slice(pixels, tf.concat([corner, [0]], 0), tf.stack([side, side, -1]))


def _resized(op: DecodeCentralCrop | DecodeResize, pixels: Any, size: Any) -> Any:
    """uint8 [*size, c], with half-pixel centres."""
    values = tf.image.resize(pixels, size, method=op.method, antialias=op.antialias)
    return tf.cast(tf.round(tf.clip_by_value(values, 0.0, 255.0)), tf.uint8)  # bicubic leaves the range


def checked(value: Any, condition: Any, message: list[Any]) -> Any:
    """The value; the graph raises InvalidArgumentError with the message unless the condition holds."""
    # The raw op: tf.debugging.Assert adds a conditional to the graph, which costs 12 us per image.
    with tf.control_dependencies([tf.raw_ops.Assert(condition=condition, data=message, summarize=2)]):
        return tf.identity(value)
