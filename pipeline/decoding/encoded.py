"""Images as they are stored: their format and size, told from their content, and the pixels of a window of them.

EXIF is ignored, its rotation too, as other readers do. Of transparent pixels the colour is taken."""

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
_ANY = 0  # in _KINDS: any byte
_SHOWN = 12
# What an error calls data that begin so; the first that fits. https://en.wikipedia.org/wiki/List_of_file_signatures
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
    ("no known image format", b""),
)


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
    decoded; PNG and WebP are decoded whole. InvalidArgumentError for anything else and for more pixels than max_pixels,
    with `key` and what to do, and for a damaged image."""
    is_jpeg = tf.strings.substr(encoded, 0, 3) == b"\xff\xd8\xff"
    shape = tf.cond(is_jpeg, lambda: tf.io.extract_jpeg_shape(encoded), lambda: _shape_of_others(encoded, key))
    small = tf.reduce_prod(tf.cast(shape[:2], tf.int64)) <= max_pixels
    said = (
        f"{key!r} has more pixels than max_pixels={max_pixels}. Give the op a larger max_pixels, or convert the data "
        "again with a --max_side. Its height and width are"
    )
    # The raw op: tf.debugging.Assert adds a conditional to the graph, which costs 12 us an image.
    with tf.control_dependencies([tf.raw_ops.Assert(condition=small, data=[said, shape[:2]], summarize=2)]):
        # Outside of the branches: the graph passes through all ops of both, those of one without values.
        chosen = window(tf.identity(shape[:2]))

    def cropped(channels: int) -> Any:
        # The exact DCT, because TensorFlow's default is 0.8 levels too dark.
        return tf.io.decode_and_crop_jpeg(encoded, chosen, channels=channels, dct_method="INTEGER_ACCURATE")

    def of_jpeg() -> Any:
        if channels == 3:
            return cropped(3)
        return tf.cond(shape[2] == 4, lambda: _grey(cropped(3)), lambda: cropped(1))  # 4: CMYK

    # Or it is decoded, however large, before its header is looked at: within a branch no such order is kept.
    with tf.control_dependencies([chosen]):
        after = tf.identity(encoded)
    pixels = tf.cond(is_jpeg, of_jpeg, lambda: _window_of_others(after, chosen, channels))
    return tf.ensure_shape(pixels, [None, None, channels]), tf.ensure_shape(chosen, [4])


def _shape_of_others(encoded: Any, key: str) -> Any:
    """int32 [3]: height, width and 3, of a PNG or WebP. InvalidArgumentError for anything else."""
    head = tf.cast(tf.io.decode_raw(encoded, tf.uint8, fixed_length=_HEAD_BYTES), tf.int32)
    return tf.concat([_size_of_others(head, encoded, key), [3]], 0)


def _window_of_others(encoded: Any, window: Any, channels: int) -> Any:
    begin, size = tf.split(window, 2)
    is_png = tf.strings.substr(encoded, 0, 8) == _PNG
    colours = tf.cond(is_png, lambda: tf.io.decode_png(encoded, channels=3), lambda: _webp(encoded))
    pixels = tf.slice(colours, tf.concat([begin, [0]], 0), tf.concat([size, [3]], 0))
    return pixels if channels == 3 else _grey(pixels)


def _grey(colours: Any) -> Any:
    """The luma of RGB (ITU-R BT.601), as in a JPEG's own."""
    weighted = tf.cast(colours, tf.float32) * [0.299, 0.587, 0.114]
    return tf.cast(tf.round(tf.reduce_sum(weighted, -1, keepdims=True)), tf.uint8)


def _webp(data: Any) -> Any:
    """[h, w, 3 or 4] of a WebP that is no animation: of one, with channels=0, TensorFlow 2.21 writes beyond its memory.

    Any other number of channels is an error for half of the images: those with alpha, or those without."""
    return tf.io.decode_webp(data, channels=0)[0]


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
    animated = is_webp & (head[15] == ord("X")) & (head[20] & 2 > 0)
    size = tf.where(is_png, tf.stack([big_endian(20), big_endian(16)]), tf.where(is_webp, webp, 0))
    known = (tf.reduce_min(size) > 0) & ~animated
    with tf.control_dependencies([_assert_known(known, animated, head, encoded, key)]):
        return tf.identity(size)


def _assert_known(known: Any, animated: Any, head: Any, encoded: Any, key: str) -> Any:
    """The assertion says what the data are instead."""
    begins = np.array([list(begin.ljust(_SHOWN, b"\0")) for _, begin in _KINDS])
    fits = tf.reduce_all((begins == _ANY) | (head[:_SHOWN] == begins), axis=1)
    kind = tf.gather([name for name, _ in _KINDS], tf.argmax(tf.cast(fits, tf.int32)))
    kind = tf.where(animated, "an animated WebP", kind)
    # Letters only: TensorFlow makes a UnicodeDecodeError of an error whose text is not UTF-8.
    letters = tf.gather([chr(byte) if 32 <= byte < 127 else "." for byte in range(256)], head[:_SHOWN])
    length = tf.strings.length(encoded)
    said = [
        f"{key!r} is ",
        kind,
        "; it must be a JPEG, a PNG or a still WebP. Save it as one of these and convert the data again, or leave such "
        "records out with on_error. It has ",
        tf.strings.as_string(length),
        " bytes and begins with '",
        tf.strings.substr(tf.strings.reduce_join(letters), 0, length),
        "'.",
    ]
    return tf.raw_ops.Assert(condition=known, data=[tf.strings.join(said)])
