"""The base of ops that turn one feature into one image."""

from typing import Any

import numpy as np

from pipeline.decoding.op import Features, Op, Specs, spec_of
from pipeline.decoding.rng import Rng
from pipeline.errors import SchemaError
from pipeline.spec import BYTES, ArraySpec


class ImageOp:
    """Reads `key` and sets one image. A subclass computes the image from the feature's value; by default, the image has
    the spec of the one it reads."""

    key: str

    @property
    def reads(self) -> tuple[str, ...]:
        """See Op."""
        return (self.key,)

    def output_spec(self, specs: Specs) -> Specs:
        """See Op."""
        return {self._sets: self._spec(specs)}

    def __call__(self, features: Features, rng: Rng) -> Features:
        return {self._sets: self._image(features[self.key], rng)}

    @property
    def _sets(self) -> str:
        return self.key

    def _spec(self, specs: Specs) -> ArraySpec:
        return image_spec(self, self.key, specs)

    def _image(self, value: Any, rng: Rng, /) -> np.ndarray:
        raise NotImplementedError


def image_spec(op: Op, key: str, specs: Specs, *, only_uint8: bool = False) -> ArraySpec:
    """The spec of the decoded image that `op` reads. SchemaError, with the op that would help, for anything else."""
    spec = spec_of(op, key, specs)
    if len(spec.shape) == 3 and spec.fits_a_batch and (spec.dtype == "u1" or not only_uint8):
        return spec
    wanted = "a uint8 image" if only_uint8 else "an image"
    if spec.dtype == BYTES:
        found = "bytes"
        remedy = (
            " Decode it first: DecodeResize, DecodeCentralCrop and DecodeRandomResizedCrop take images of any size, "
            "DecodeJpeg and DecodePng images of a fixed size."
        )
    else:
        found = f"{spec.dtype} {spec.shape}"
        remedy = f" A grey image has one channel: {(*spec.shape, 1)}." if len(spec.shape) == 2 else ""
        if len(spec.shape) == 3:
            remedy = " Put this op before the one that changes its dtype."
    raise SchemaError(f"{op!r}: {key!r} is {found}; it must be {wanted} (height, width, channels).{remedy}")
