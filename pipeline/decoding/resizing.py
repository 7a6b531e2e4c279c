"""Resizing and flipping of uint8 images."""

from typing import Any, Literal, get_args

from pipeline.decoding.op import Op
from pipeline.errors import OptionError
from pipeline.tf_cpu import tf

__all__ = ["Method", "check_resizing", "check_size", "flipped", "resized"]

Method = Literal["bilinear", "bicubic", "area"]


def check_resizing(op: Op, size: tuple[int, int], method: Method, antialias: bool) -> None:
    """Raises OptionError for options of `op` that `resized` does not support."""
    check_size(op, size)
    if method not in get_args(Method) or (antialias and method == "area"):
        known = ", ".join(get_args(Method))
        raise OptionError(f"{op!r}: method must be one of {known}; antialias is for bilinear and bicubic.")


def check_size(op: Op, size: tuple[int, int]) -> None:
    """Raises OptionError unless `size` is (height, width), both at least 1."""
    if len(size) != 2 or min(size) < 1:
        raise OptionError(f"{op!r}: size must be (height, width).")


def resized(image: Any, size: Any, method: Method, antialias: bool) -> Any:
    """uint8 [*size, c] of a uint8 image, with half-pixel centres. Rounds: truncation would lose 0.44 levels."""
    values = tf.image.resize(image, size, method=method, antialias=antialias)
    if method == "bicubic":  # the others stay within the range of their inputs
        values = tf.clip_by_value(values, 0.0, 255.0)
    return tf.cast(tf.round(values), tf.uint8)


def flipped(image: Any, bits: Any) -> Any:
    """The image, mirrored if `bits`, uint32 [], are odd."""
    # A conditional costs 10 us; copying 150 KB needlessly costs 80 us.
    return tf.cond(tf.cast(bits & 1, tf.bool), lambda: tf.reverse(image, [1]), lambda: image)
