"""Ops for features of any kind: select, rename and cast them."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.decoding.op import Features, OneFeatureOp, Specs, spec_of
from pipeline.decoding.rng import Rng
from pipeline.errors import OptionError, SchemaError
from pipeline.spec import BYTES, NUMBERS, holds


@dataclass(frozen=True)
class _Choice:
    """Common part of both. keys: names of features."""

    keys: Iterable[str]

    def __post_init__(self) -> None:
        if isinstance(self.keys, str):
            raise OptionError(
                f"{type(self).__name__}({self.keys!r}): keys must be a list. Give [{self.keys!r}]."
            )
        object.__setattr__(self, "keys", tuple(self.keys))

    @property
    def reads(self) -> tuple[str, ...]:
        """See Op."""
        return ()

    def output_spec(self, specs: Specs) -> Specs:
        """See Op."""
        for key in self.keys:
            spec_of(self, key, specs)
        return {}

    def __call__(self, features: Features, rng: Rng) -> Features:
        return {}


class Keep(_Choice):
    """Keeps the features `keys` and drops all others."""

    @property
    def reads(self) -> tuple[str, ...]:
        """See Op."""
        return tuple(self.keys)

    def dropped_features(self, specs: Specs) -> Collection[str]:
        """See DropsFeatures."""
        return specs.keys() - set(self.keys)


class Drop(_Choice):
    """Drops the features `keys`. Features that no other op reads are not parsed."""

    def dropped_features(self, specs: Specs) -> Collection[str]:
        """See DropsFeatures."""
        return tuple(self.keys)


@dataclass(frozen=True)
class Rename:
    """Renames features: {old: new}. All are renamed at the same time, so two can swap their names.

    A new name that another feature already has is an error."""

    names: Mapping[str, str] | Iterable[tuple[str, str]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(dict(self.names).items()))  # hashable, as ops are
        if len(set(dict(self.names).values())) < len(dict(self.names)):
            raise OptionError(
                f"{self!r}: two features get the same name. Choose another for one of them."
            )

    @property
    def reads(self) -> tuple[str, ...]:
        """See Op."""
        return tuple(dict(self.names))

    def output_spec(self, specs: Specs) -> Specs:
        """See Op."""
        renamed = {new: spec_of(self, old, specs) for old, new in dict(self.names).items()}
        if taken := sorted(renamed.keys() & (specs.keys() - set(self.reads))):
            raise OptionError(
                f"{self!r}: a feature {taken[0]!r} already exists. Drop([{taken[0]!r}]) before "
                "it, or choose another name."
            )
        return renamed

    def dropped_features(self, specs: Specs) -> Collection[str]:
        """See DropsFeatures."""
        return self.reads

    def __call__(self, features: Features, rng: Rng) -> Features:
        return {new: features[old] for old, new in dict(self.names).items()}


@dataclass(frozen=True)
class Cast(OneFeatureOp):
    """Changes the dtype of the numeric feature `key`: "float32", "int32", "uint8", "bool" and so
    on, or a NumPy dtype.

    Floats are rounded to the nearest integer, ties to even. A value out of range is an error that
    names the record: nothing wraps around. In a batch, 64 bits become 32."""

    key: str
    dtype: Any

    def __post_init__(self) -> None:
        try:
            dtype = np.dtype(self.dtype)
        except TypeError:
            dtype = BYTES
        if dtype not in NUMBERS:
            raise OptionError(
                f"{self!r}: dtype must be one of {', '.join(each.name for each in NUMBERS)}."
            )
        object.__setattr__(self, "dtype", dtype.name)

    def output_spec(self, specs: Specs) -> Specs:
        """See Op."""
        spec = spec_of(self, self.key, specs)
        dtype = np.dtype(self.dtype)
        if spec.dtype == BYTES:
            raise SchemaError(
                f"{self!r}: {self.key!r} is bytes; it must be numeric. Decode it in an earlier op."
            )
        for value in (spec.pad, spec.missing):
            if value is not None and not holds(dtype, value):
                raise SchemaError(
                    f"{self!r}: {self.key!r} has {value} for absent values, which {self.dtype} "
                    "cannot hold. Choose another value in pad_to, or a wider dtype."
                )
        return {self.key: replace(spec, dtype=dtype)}

    def __call__(self, features: Features, rng: Rng) -> Features:
        value = np.asarray(features[self.key])
        dtype = np.dtype(self.dtype)
        if value.dtype.kind == "f" and dtype.kind in "iu":
            value = np.rint(value)
        with np.errstate(over="ignore", invalid="ignore"):
            cast = value.astype(dtype)
        if dtype.kind == "b" or np.can_cast(value.dtype, dtype):
            return {self.key: cast}
        if dtype.kind == "f":
            fits = np.isfinite(cast) == np.isfinite(value)
        else:
            bounds = (value.min(initial=0), value.max(initial=0))
            fits = [holds(dtype, bound.item()) for bound in bounds]
        if not np.all(fits):
            raise SchemaError(
                f"{self.key!r} has a value that {self.dtype} cannot hold, in {self!r}. Its minimum "
                f"and maximum are {value.min()} and {value.max()}."
            )
        return {self.key: cast}
