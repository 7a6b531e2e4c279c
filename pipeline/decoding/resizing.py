"""Pixels to pixels: resizing and flipping of uint8 images."""

from typing import Any, Literal

from pipeline.tf_cpu import tf

__all__ = ["METHODS", "Method", "flipped", "resized"]

Method = Literal["bilinear", "bicubic", "area"]
METHODS = ("bilinear", "bicubic", "area")


def resized(image: Any, size: Any, method: Method, antialias: bool) -> Any:
    """uint8 [*size, c] of a uint8 image, with half-pixel centres, rounded: to cut costs 0.44 levels of brightness."""
    values = tf.image.resize(image, size, method=method, antialias=antialias)
    if method == "bicubic":  # the others stay within the pixels they are made of
        values = tf.clip_by_value(values, 0.0, 255.0)
    return tf.cast(tf.round(values), tf.uint8)


def flipped(image: Any, bits: Any) -> Any:
    """The image, or its mirror image where `bits`, uint32 [], are odd."""
    # A conditional costs 10 us; to copy 150 KB where nothing is flipped, 80.
    return tf.cond(tf.cast(bits & 1, tf.bool), lambda: tf.reverse(image, [1]), lambda: image)
