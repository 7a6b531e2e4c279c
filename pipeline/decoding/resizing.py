"""Resizing of uint8 images with half-pixel centres, rounded, without a bias; mirroring, and
borders.

Every other module imports `cv2` from here: OpenCV uses one thread."""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from PIL import Image

from pipeline.checks import check_choice
from pipeline.decoding.op import Op, Size
from pipeline.errors import OptionError
from pipeline.packages import how_to_install

try:
    import cv2
except ModuleNotFoundError as e:
    if e.name != "cv2":
        raise
    raise ModuleNotFoundError(
        f"Ops need OpenCV, which is not installed. Install it: {how_to_install('read')}.",
        name="cv2",
    ) from e
cv2.setNumThreads(1)  # batches are decoded in threads of their own
Method = Literal["bilinear", "bicubic"]
Fill = Literal["zero", "edge"]
# channels, of OpenCV
_MOST_CHANNELS = 512
_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def check_resizing(op: Op, size: Size, method: Method) -> None:
    """Raises OptionError for options of `op` that `resized` does not support."""
    check_size(op, size)
    check_choice(f"{op!r}: method", method, get_args(Method))


def check_size(op: Op, size: Size) -> None:
    """Raises OptionError unless `size` is (height, width), both at least 1."""
    if not isinstance(size, Sequence) or len(size) != 2 or min(size) < 1:
        raise OptionError(
            f"{type(op).__name__}: size={size!r} must be (height, width), such as (224, 224)."
        )


def resized(image: np.ndarray, size: Size, method: Method, antialias: bool) -> np.ndarray:
    """uint8 [*size, c] of a uint8 image [h, w, c]."""
    height, width = size
    if antialias:
        # Pillow's resizing of bytes rounds in between: a bias of up to 0.11 levels. That of floats
        # takes twice as long.
        planes = [Image.fromarray(plane) for plane in np.moveaxis(image.astype(np.float32), 2, 0)]
        pixels = _rounded(
            np.stack(
                [np.asarray(plane.resize((width, height), _FILTERS[method])) for plane in planes], 2
            )
        )
    elif method == "bilinear":
        # OpenCV's resizing of bytes rounds down: a bias of -0.12 levels. That of 16 bits rounds,
        # and takes no longer.
        pixels = cv2.resize(
            image.astype(np.uint16), (width, height), interpolation=cv2.INTER_LINEAR
        ).astype(np.uint8)
    else:
        pixels = cv2.resize(image, (width, height), interpolation=cv2.INTER_CUBIC)
    return pixels.reshape(height, width, image.shape[2])


def mirrored(image: np.ndarray) -> np.ndarray:
    """The image [h, w, c] of any dtype from right to left. NumPy takes twenty times as long to copy
    image[:, ::-1]."""
    pixels = _as_bytes(image)
    return (
        image[:, ::-1]
        if pixels is None
        else cv2.flip(pixels, 1).view(image.dtype).reshape(image.shape)
    )


def bordered(image: np.ndarray, width: int, fill: Fill) -> np.ndarray:
    """The image [h, w, c], of any dtype, with this many pixels more on each side: 0, or the nearest
    one."""
    pixels = _as_bytes(image)
    if pixels is None:
        return np.pad(
            image, [(width, width)] * 2 + [(0, 0)], "edge" if fill == "edge" else "constant"
        )
    border = cv2.BORDER_REPLICATE if fill == "edge" else cv2.BORDER_CONSTANT
    bordered_pixels = cv2.copyMakeBorder(pixels, width, width, width, width, border)
    return bordered_pixels.reshape(*bordered_pixels.shape[:2], -1).view(image.dtype)


def _as_bytes(image: np.ndarray) -> np.ndarray | None:
    """uint8 [h, w, bytes per pixel], because OpenCV does not support every dtype; None for more
    channels than it supports."""
    pixels = np.ascontiguousarray(image).view(np.uint8)
    return pixels if pixels.shape[2] <= _MOST_CHANNELS else None


def _rounded(values: np.ndarray) -> np.ndarray:
    return np.rint(values.clip(0, 255)).astype(np.uint8)
