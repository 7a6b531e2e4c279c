"""Encoded images: detects format and size from the content, and decodes the pixels of a window.

EXIF is ignored, including its rotation, as in other readers. Transparent pixels keep their colour."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pipeline.decoding.op import Op, Specs, spec_of
from pipeline.errors import SchemaError
from pipeline.spec import BYTES, ArraySpec
from pipeline.tf_cpu import tf

__all__ = ["decoded_window", "pixels_spec"]

_HEAD_BYTES = 30  # the longest header up to the size: WebP's
_PNG = b"\x89PNG\r\n\x1a\n"
_ANY = 0  # in _KINDS: any byte
_SHOWN = 12
# Names in errors for data that start like this; the first match. https://en.wikipedia.org/wiki/List_of_file_signatures
_KINDS = (
    ("a PNG with a damaged header", _PNG),
    ("a WebP with a damaged header", b"RIFF\0\0\0\0WEBP"),
    ("a GIF", b"GIF8"),
    ("a BMP", b"BM"),
    ("a TIFF", b"II*"),
    ("a TIFF", b"MM\0*"),
    ("a JPEG 2000", b"\0\0\0\x0cjP  "),
    ("a JPEG XL", b"\0\0\0\x0cJXL "),
    ("a JPEG XL", b"\xff\x0a"),
    ("an AVIF or HEIC", b"\0\0\0\0ftyp"),
    ("HTML or XML", b"<"),
    ("not a known image format", b""),
)


def pixels_spec(op: Op, key: str, specs: Specs, shape: tuple[int, int, int]) -> ArraySpec:
    """uint8 with this shape, which `op` decodes from `key`. SchemaError unless `key` is one bytes value."""
    spec = spec_of(op, key, specs)
    if spec.dtype != BYTES or spec.shape != ():
        raise SchemaError(f"{op!r}: {key!r} is {spec.dtype} {spec.shape}; it must be one bytes value.")
    return ArraySpec(shape, np.dtype(np.uint8))


def decoded_window(
    encoded: Any, window: Callable[[Any], Any], channels: int, max_pixels: int, key: str
) -> tuple[Any, Any]:
    """(pixels, window): uint8 [h, w, channels] of the window that `window` returns, and its [y, x, h, w] (int32).

    window: int32 [2], height and width of the image -> [y, x, h, w] inside it. For a JPEG, only the window is decoded;
    PNG and WebP are decoded completely. InvalidArgumentError, with `key` and the remedy, for other data and for more
    than max_pixels pixels, and for a damaged image."""
    is_jpeg = tf.strings.substr(encoded, 0, 3) == b"\xff\xd8\xff"
    shape = tf.cond(is_jpeg, lambda: tf.io.extract_jpeg_shape(encoded), lambda: _shape_of_png_or_webp(encoded, key))
    small = tf.reduce_prod(tf.cast(shape[:2], tf.int64)) <= max_pixels
    said = (
        f"{key!r} has more pixels than max_pixels={max_pixels}. Give the op a larger max_pixels, or convert the data "
        "again with --max_side. Its height and width are"
    )
    # The raw op: tf.debugging.Assert adds a conditional to the graph, which costs 12 us per image.
    with tf.control_dependencies([tf.raw_ops.Assert(condition=small, data=[said, shape[:2]], summarize=2)]):
        # Outside the branches: the graph visits all ops of both, one branch without values.
        chosen = window(tf.identity(shape[:2]))

    def cropped(channels: int) -> Any:
        # The exact DCT: TensorFlow's default is 0.8 levels too dark.
        return tf.io.decode_and_crop_jpeg(encoded, chosen, channels=channels, dct_method="INTEGER_ACCURATE")

    def of_jpeg() -> Any:
        if channels == 3:
            return cropped(3)
        return tf.cond(shape[2] == 4, lambda: _grey(cropped(3)), lambda: cropped(1))  # 4: CMYK

    # Otherwise it may be decoded, however large, before its header is checked: branches do not preserve the order.
    with tf.control_dependencies([chosen]):
        after = tf.identity(encoded)
    pixels = tf.cond(is_jpeg, of_jpeg, lambda: _window_of_png_or_webp(after, chosen, channels))
    return tf.ensure_shape(pixels, [None, None, channels]), tf.ensure_shape(chosen, [4])


def _window_of_png_or_webp(encoded: Any, window: Any, channels: int) -> Any:
    begin, size = tf.split(window, 2)
    is_png = tf.strings.substr(encoded, 0, 8) == _PNG
    # channels=0, because any other number is an error either for images with alpha or for those without. The WebP must
    # be still: for an animation, TensorFlow 2.21 writes out of bounds.
    colours = tf.cond(
        is_png, lambda: tf.io.decode_png(encoded, channels=3), lambda: tf.io.decode_webp(encoded, channels=0)[0]
    )
    pixels = tf.slice(colours, tf.concat([begin, [0]], 0), tf.concat([size, [3]], 0))
    return pixels if channels == 3 else _grey(pixels)


def _grey(colours: Any) -> Any:
    """The luma of RGB (ITU-R BT.601), as in a JPEG's own."""
    weighted = tf.cast(colours, tf.float32) * [0.299, 0.587, 0.114]
    return tf.cast(tf.round(tf.reduce_sum(weighted, -1, keepdims=True)), tf.uint8)


def _shape_of_png_or_webp(encoded: Any, key: str) -> Any:
    """int32 [3]: height, width and 3. InvalidArgumentError for other data.

    PNG: https://www.w3.org/TR/png-3/. WebP: https://www.rfc-editor.org/rfc/rfc9649."""
    head = tf.cast(tf.io.decode_raw(encoded, tf.uint8, fixed_length=_HEAD_BYTES), tf.int32)

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
    animated = is_webp & (head[15] == ord("X")) & (head[20] & 2 > 0)
    size = tf.where(is_png, tf.stack([big_endian(20), big_endian(16)]), tf.where(is_webp, webp, 0))
    known = (tf.reduce_min(size) > 0) & ~animated
    with tf.control_dependencies([_assert_known(known, animated, head, encoded, key)]):
        return tf.concat([size, [3]], 0)


def _assert_known(known: Any, animated: Any, head: Any, encoded: Any, key: str) -> Any:
    """The assertion states the actual format of the data."""
    begins = np.array([list(begin.ljust(_SHOWN, b"\0")) for _, begin in _KINDS])
    fits = tf.reduce_all((begins == _ANY) | (head[:_SHOWN] == begins), axis=1)
    kind = tf.gather([name for name, _ in _KINDS], tf.argmax(tf.cast(fits, tf.int32)))
    kind = tf.where(animated, "an animated WebP", kind)
    # ASCII only: TensorFlow raises UnicodeDecodeError for an error whose text is not UTF-8.
    letters = tf.gather([chr(byte) if 32 <= byte < 127 else "." for byte in range(256)], head[:_SHOWN])
    length = tf.strings.length(encoded)
    said = [
        f"{key!r} is ",
        kind,
        "; it must be a JPEG, a PNG or a still WebP. Save it as one of these and convert the data again, or leave such "
        "records out with on_error. It has ",
        tf.strings.as_string(length),
        " bytes and starts with '",
        tf.strings.substr(tf.strings.reduce_join(letters), 0, length),
        "'.",
    ]
    return tf.raw_ops.Assert(condition=known, data=[tf.strings.join(said)])
