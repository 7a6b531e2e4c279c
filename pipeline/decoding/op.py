"""What a preprocessing op is: features of one example in, features out. Every op fulfils it, and users' own may.

An op draws nothing itself: its seed is a hash of (dataset seed, epoch, record id, its place in the list), so the
same record looks the same on any number of hosts and after any resume."""

from collections.abc import Collection, Mapping
from typing import Any, Protocol, runtime_checkable

from pipeline.shards.errors import OptionError, did_you_mean
from pipeline.spec import ArraySpec

__all__ = ["DropsFeatures", "Features", "Op", "Specs", "spec_of"]

Features = dict[str, Any]  # one tensor a key
Specs = Mapping[str, ArraySpec]


class Op(Protocol):
    """What a recipe takes. A new op is a new frozen dataclass with these three."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The features it needs."""
        ...

    def output_spec(self, specs: Specs) -> Specs:
        """The features it sets, of one example. Raises OptionError or SchemaError when it cannot work on `specs`."""
        ...

    def __call__(self, features: Features, seed: Any) -> Features:
        """The features it sets. seed: int32 [2], uniform over all bits. Runs in a graph."""
        ...


@runtime_checkable
class DropsFeatures(Op, Protocol):
    """An op that also takes features away. It need not read them, so that they need not be parsed."""

    def dropped_features(self, specs: Specs) -> Collection[str]:
        """Those of `specs` that are gone after it, unless it sets them."""
        ...


def spec_of(op: Op, key: str, specs: Specs) -> ArraySpec:
    """The spec of a feature that an op reads. Raises OptionError, with the nearest name, when there is none."""
    if key not in specs:
        raise OptionError(f"{op!r} reads {key!r}, which is neither in the records nor set by an op before it."
                          f"{did_you_mean(key, specs)}")  # fmt: skip
    return specs[key]
