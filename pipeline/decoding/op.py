"""The protocol of preprocessing ops, ours and users': features of one example in, features out.

Ops are NumPy, one record at a time. An op has no random state: what it draws depends on a hash of (dataset seed,
epoch, record id, position in the list), so a record is preprocessed identically on any number of hosts and after any
resume."""

from collections.abc import Collection, Mapping
from typing import Any, Protocol, runtime_checkable

from pipeline.decoding.rng import Rng
from pipeline.errors import OptionError, did_you_mean
from pipeline.spec import ArraySpec

Features = dict[str, Any]  # per key, an array or NumPy scalar; bytes where they are one value
Specs = Mapping[str, ArraySpec]


@runtime_checkable
class Op(Protocol):
    """A preprocessing op. To add one, write a frozen dataclass with these three members."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The features that the op needs."""
        ...

    def output_spec(self, specs: Specs) -> Specs:
        """The features that the op sets, of one example. Raises OptionError or SchemaError if `specs` do not fit."""
        ...

    def __call__(self, features: Features, rng: Rng) -> Features:
        """Returns the features that the op sets: arrays of the shapes and dtypes that output_spec states.

        features: of one record; do not write into them. A SchemaError raised here names the record."""
        ...


@runtime_checkable
class DropsFeatures(Op, Protocol):
    """An op that also removes features. It need not read them, so they need not be parsed."""

    def dropped_features(self, specs: Specs) -> Collection[str]:
        """The features of `specs` that the op removes, unless it sets them."""
        ...


def spec_of(op: Op, key: str, specs: Specs) -> ArraySpec:
    """The spec of a feature that an op reads. Raises OptionError, with the nearest name, if there is none."""
    if key not in specs:
        raise OptionError(f"{op!r} reads {key!r}, which is neither in the records nor set by an earlier op."
                          f"{did_you_mean(key, specs)}")  # fmt: skip
    return specs[key]
