"""Ops for labels."""

from dataclasses import dataclass

import numpy as np

from pipeline.checks import check_number
from pipeline.decoding.op import Features, OneFeatureOp, Specs, spec_of
from pipeline.decoding.rng import Rng
from pipeline.errors import OptionError, SchemaError
from pipeline.spec import ArraySpec


@dataclass(frozen=True)
class _Hot(OneFeatureOp):
    """Common part of both: sets `into` to float32 [num_classes] from the labels in `key`; [0] is
    label `base`."""

    key: str
    num_classes: int
    base: int = 0
    into: str = "labels"

    def __post_init__(self) -> None:
        check_number(f"{self!r}: num_classes", self.num_classes, at_least=1)

    def output_spec(self, specs: Specs) -> Specs:
        """See Op."""
        spec = spec_of(self, self.key, specs)
        self._check(spec)
        if spec.missing is not None and spec.missing in self._classes:
            raise SchemaError(
                f"{self!r}: {self.key!r} has {spec.missing} for absent labels, but {self._labels} "
                "are labels. Give pad_to another value, such as PadTo(..., value=-1), and store "
                "labels that may be absent with shape (None,)."
            )
        return {self.into: ArraySpec((self.num_classes,), np.dtype(np.float32))}

    def __call__(self, features: Features, rng: Rng) -> Features:
        labels = self._without_ignored(np.asarray(features[self.key]).reshape(-1))
        wrong = labels[(labels < self.base) | (labels >= self.base + self.num_classes)]
        if len(wrong):
            raise SchemaError(
                f"{self.key!r} has a label outside {self._labels}, the classes of {self!r}: "
                f"{wrong[0]}."
            )
        hot = np.zeros(self.num_classes, np.float32)
        hot[labels.astype(np.int64) - self.base] = 1
        return {self.into: hot}

    def _check(self, spec: ArraySpec) -> None:
        raise NotImplementedError

    def _without_ignored(self, labels: np.ndarray) -> np.ndarray:
        return labels

    @property
    def _labels(self) -> str:
        return f"{self.base}..{self.base + self.num_classes - 1}"

    @property
    def _classes(self) -> range:
        return range(self.base, self.base + self.num_classes)


@dataclass(frozen=True)
class OneHot(_Hot):
    """Sets `into` to float32 [num_classes]: 1.0 at the record's label, 0.0 elsewhere; [0] is label
    `base`.

    The label is one integer. A label outside base..base + num_classes - 1 is an error that names
    it."""

    def _check(self, spec: ArraySpec) -> None:
        if spec.dtype.kind not in "iu" or spec.shape != ():
            raise SchemaError(
                f"{self!r}: {self.key!r} is {spec.dtype} {spec.shape}; it must be a single "
                "integer, shape (). MultiHot takes any number of labels."
            )
        if spec.missing is not None and spec.missing not in self._classes:
            raise SchemaError(
                f"{self!r}: {self.key!r} has {spec.missing} for absent labels. "
                f"MultiHot(..., ignore={spec.missing}) turns them into zeros."
            )


@dataclass(frozen=True)
class MultiHot(_Hot):
    """Sets `into` to float32 [num_classes]: 1.0 at every label of the record, 0.0 elsewhere; [0] is
    label `base`.

    Takes any integers: one or many, of any length or padded by pad_to. A record without labels gets
    zeros. ignore: a value that is not a label, such as pad_to's value or that of an absent optional
    feature. Any other label outside base..base + num_classes - 1 is an error that names it."""

    ignore: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ignore is not None and self.ignore in self._classes:
            raise OptionError(
                f"{self!r}: ignore must not be a label, and {self._labels} are labels."
            )

    def _check(self, spec: ArraySpec) -> None:
        if spec.dtype.kind not in "iu":
            raise SchemaError(
                f"{self!r}: {self.key!r} is {spec.dtype} {spec.shape}; it must be integers."
            )
        if spec.missing not in (None, self.ignore) and spec.missing not in self._classes:
            raise SchemaError(
                f"{self!r}: {self.key!r} has {spec.missing} for absent labels. Give "
                f"ignore={spec.missing}."
            )

    def _without_ignored(self, labels: np.ndarray) -> np.ndarray:
        return labels if self.ignore is None else labels[labels != self.ignore]


@dataclass(frozen=True)
class RequireLabel(OneFeatureOp):
    """Changes nothing. A record whose label, the integer in `key`, is -1 is an error that names the
    record.

    why: the end of its message, such as what needs the label."""

    key: str
    why: str = ""

    def output_spec(self, specs: Specs) -> Specs:
        """See Op."""
        spec = spec_of(self, self.key, specs)
        if spec.dtype.kind not in "iu" or spec.shape:
            raise SchemaError(
                f"{self!r}: {self.key!r} is {spec.dtype} {spec.shape}; it must be a single integer."
            )
        return {}

    def __call__(self, features: Features, rng: Rng) -> Features:
        if features[self.key] == -1:
            raise SchemaError(f"the record has no label: {self.key!r} is -1. {self.why}")
        return {}
