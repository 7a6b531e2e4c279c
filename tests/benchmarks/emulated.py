"""An op whose calls into C sleep for as long as they would take, so that few cores show what many would deliver.

Python and NumPy run as they are, and hold the GIL as they do. What sleeps is decoding and resizing, in any number of
threads and worker processes; their results are arrays of zeros."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.decoding import image_ops, resizing
from pipeline.decoding.op import Rng
from pipeline.ops import DecodeRandomResizedCrop

# seconds, of a photograph of 375 x 500 pixels on one core: tests/benchmarks/results
DECODING = 0.0011
RESIZING = {"bilinear": 0.00018, "bicubic": 0.00014}
SIDE = 224


class _Jpeg:
    """In place of simplejpeg."""

    def __init__(self, real: Any) -> None:
        self.decode_jpeg_header = real.decode_jpeg_header
        self._pixels = np.zeros((375, 500, 3), np.uint8)

    def decode_jpeg(self, *_: Any, **__: Any) -> np.ndarray:
        time.sleep(DECODING)
        return self._pixels


class _OpenCv:
    """In place of cv2."""

    def __init__(self, real: Any, seconds: float) -> None:
        self._real = real
        self._seconds = seconds
        self._resized = {kind: np.zeros((SIDE, SIDE, 3), kind) for kind in ("u1", "u2")}

    def resize(self, image: np.ndarray, *_: Any, **__: Any) -> np.ndarray:
        time.sleep(self._seconds)
        return self._resized[image.dtype.str[1:]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@dataclass(frozen=True, kw_only=True)
class EmulatedCrop(DecodeRandomResizedCrop):
    """DecodeRandomResizedCrop of photographs of 375 x 500 pixels, in a process that decodes nothing else."""

    def _image(self, value: bytes, rng: Rng, /) -> np.ndarray:
        if not isinstance(image_ops.simplejpeg, _Jpeg):
            image_ops.simplejpeg = _Jpeg(image_ops.simplejpeg)
            resizing.cv2 = _OpenCv(resizing.cv2, RESIZING[self.method])
        return super()._image(value, rng)
