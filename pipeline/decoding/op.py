"""The protocol of preprocessing ops, ours and users': features of one example in, features out.

Ops are NumPy, one record at a time. An op has no random state: what it draws depends on a hash of
(dataset seed, epoch, record id, position in the list), so a record is preprocessed identically on
any number of hosts and after any resume. ImageOp is the base of ops that turn one feature into one
image."""

from collections.abc import Collection, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from pipeline.checks import did_you_mean
from pipeline.decoding.rng import Rng
from pipeline.errors import OptionError, SchemaError
from pipeline.spec import BYTES, ArraySpec

Features = dict[str, Any]  # per key, an array or NumPy scalar; bytes where they are one value
Specs = Mapping[str, ArraySpec]
Size = tuple[int, int]  # height, width


@runtime_checkable
class Op(Protocol):
    """A preprocessing op. To add one, write a frozen dataclass with these three members."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The features that the op needs."""
        ...

    def output_spec(self, specs: Specs) -> Specs:
        """The features that the op sets, of one example. Raises OptionError or SchemaError if
        `specs` do not fit."""
        ...

    def __call__(self, features: Features, rng: Rng) -> Features:
        """Returns the features that the op sets: arrays of the shapes and dtypes that output_spec
        states.

        features: of one record; do not write into them. A SchemaError raised here names the
        record."""
        ...


@runtime_checkable
class DropsFeatures(Op, Protocol):
    """An op that also removes features. It need not read them, so they need not be parsed."""

    def dropped_features(self, specs: Specs) -> Collection[str]:
        """The features of `specs` that the op removes, unless it sets them."""
        ...


def spec_of(op: Op, key: str, specs: Specs) -> ArraySpec:
    """The spec of a feature that an op reads. Raises OptionError, with the nearest name, if there
    is none."""
    if key not in specs:
        raise OptionError(
            f"{op!r} reads {key!r}, which is neither in the records nor set by an earlier op."
            f"{did_you_mean(key, specs)}"
        )
    return specs[key]


class OneFeatureOp:
    """The base of ops that read one feature, `key`."""

    key: str

    @property
    def reads(self) -> tuple[str, ...]:
        """See Op."""
        return (self.key,)


class ImageOp(OneFeatureOp):
    """Reads `key` and sets one image: `into`, or `key` if the op has no such field.

    A subclass computes the image from the feature's value; by default, the image has the spec of
    the one it reads."""

    def output_spec(self, specs: Specs) -> Specs:
        """See Op."""
        return {self._sets: self._spec(specs)}

    def __call__(self, features: Features, rng: Rng) -> Features:
        return {self._sets: self._image(features[self.key], rng)}

    @property
    def _sets(self) -> str:
        return getattr(self, "into", self.key)

    def _spec(self, specs: Specs) -> ArraySpec:
        return image_spec(self, specs)

    def _image(self, value: Any, rng: Rng, /) -> np.ndarray:
        raise NotImplementedError


def image_spec(op: ImageOp, specs: Specs, *, only_uint8: bool = False) -> ArraySpec:
    """The spec of the decoded image that `op` reads. SchemaError, with the op that would help, for
    anything else."""
    spec = spec_of(op, op.key, specs)
    if len(spec.shape) == 3 and spec.fits_a_batch and (spec.dtype == "u1" or not only_uint8):
        return spec
    kind = "a uint8 image" if only_uint8 else "an image"
    actual = f"{spec.dtype} {spec.shape}"
    remedies = {
        2: f" A grey image has one channel: {(*spec.shape, 1)}.",
        3: " Put this op before the one that changes its dtype.",
    }
    remedy = remedies.get(len(spec.shape), "")
    if spec.dtype == BYTES:
        actual = "bytes"
        remedy = (
            " Decode it first: DecodeResize, DecodeCentralCrop and DecodeRandomResizedCrop take "
            "images of any size, DecodeJpeg and DecodePng images of a fixed size, DecodeStored "
            "labels per pixel."
        )
    raise SchemaError(
        f"{op!r}: {op.key!r} is {actual}; it must be {kind} (height, width, channels).{remedy}"
    )
