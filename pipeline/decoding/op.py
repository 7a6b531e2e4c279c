"""The protocol of preprocessing ops, ours and users': features of one example in, features out.

Ops are NumPy, one record at a time. An op has no random state: what it draws depends on a hash of
(dataset seed, epoch, record id, position in the list), so a record is preprocessed identically on
any number of hosts and after any resume. ImageOp is the base of ops that turn one feature into one
image.

Random numbers for ops: a stream per record and op, the same on every machine and for every version
of NumPy.

The generator is Philox4x32-10 (Salmon et al. 2011) with the seed of a record and op as its key and
a counter from 0. One round of NumPy costs as much for a batch as for a record, so the records of a
batch share what is computed."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from pipeline.checks import did_you_mean
from pipeline.errors import OptionError, SchemaError
from pipeline.spec import BYTES, ArraySpec

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_SHARED_WORDS = 64  # computed for a batch at once; ten windows need 41
Features = dict[str, Any]  # per key, an array or NumPy scalar; bytes where they are one value
Specs = Mapping[str, ArraySpec]
Size = tuple[int, int]  # height, width


@dataclass(eq=False)
class Rng:
    """The random numbers of one record for one op. Each call continues the stream.

    key: two int32, uniform over all bits, the seed of the stream; for an op that needs no more than
    these."""

    _batch: "_Batch"
    _row: int
    _next: int = 0

    @property
    def key(self) -> tuple[int, int]:
        first, second = self._batch.keys[self._row].tolist()
        return first, second

    def bits(self, count: int) -> np.ndarray:
        """uint32 [count], uniform over all bits."""
        begin = self._next
        self._next += count
        return self._batch.words(self._row, self._next)[begin:]

    def uniform(self, low: float = 0.0, high: float = 1.0, size: int | None = None) -> Any:
        """A float from [low, high), or float64 [size]: 53 random bits each."""
        words = self.bits(2 * (1 if size is None else size)).astype(np.uint64)
        unit = (
            (words[::2] >> np.uint64(5)) * 67108864.0 + (words[1::2] >> np.uint64(6))
        ) * 2.0**-53
        numbers = low + unit * (high - low)
        return float(numbers[0]) if size is None else numbers

    def integers(self, low: int, high: int, size: int | None = None) -> Any:
        """An int from [low, high), or int64 [size]. high - low: at most 2^32."""
        numbers = np.floor(self.uniform(0, high - low, size))
        return low + (int(numbers) if size is None else numbers.astype(np.int64))


@dataclass(eq=False)
class _Batch:
    """The streams of one op for the records of a batch. keys: int32 [n, 2]."""

    keys: np.ndarray
    _shared: np.ndarray | None = None

    def words(self, row: int, count: int) -> np.ndarray:
        """The first words of a record's stream: uint32 [count]."""
        if count > _SHARED_WORDS:
            return _philox(self.keys[row : row + 1], count)[0]
        if self._shared is None:
            self._shared = _philox(self.keys, _SHARED_WORDS)
        return self._shared[row, :count]


def rngs_of(keys: np.ndarray) -> Sequence[Rng]:
    """One for each of the keys, int32 [n, 2]."""
    batch = _Batch(keys)
    return [Rng(batch, row) for row in range(len(keys))]


def _philox(keys: np.ndarray, count: int) -> np.ndarray:
    """uint32 [n, count]: the first words of each key's stream."""
    key = np.ascontiguousarray(keys).view(np.uint32).astype(np.uint64)
    key0 = key[:, :1]
    key1 = key[:, 1:]
    counter = [np.zeros((len(keys), -(-count // 4)), np.uint64) for _ in range(4)]
    counter[0] += np.arange(counter[0].shape[1], dtype=np.uint64)
    for _ in range(10):
        product0 = counter[0] * _MULTIPLIERS[0]
        product1 = counter[2] * _MULTIPLIERS[1]
        counter = [
            (product1 >> _32) ^ counter[1] ^ key0,
            product1 & _LOW,
            (product0 >> _32) ^ counter[3] ^ key1,
            product0 & _LOW,
        ]
        key0 = (key0 + _WEYL[0]) & _LOW
        key1 = (key1 + _WEYL[1]) & _LOW
    return np.stack(counter, -1).reshape(len(keys), -1)[:, :count].astype(np.uint32)


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
