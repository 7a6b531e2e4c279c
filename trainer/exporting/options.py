"""What to export, and where. Needs no TensorFlow, so that a mistake shows before a training rather than after it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.errors import OptionError
from pipeline.shards.schema import Labels
from trainer.config import Model, check_positive_int
from trainer.exporting.publishing import check_asset, check_place

__all__ = ["PLATFORMS", "ExportOptions"]

PLATFORMS = ("cpu", "cuda", "tpu")


@dataclass(frozen=True)
class ExportOptions:
    """path: of the directory of exports. The others: see Trainer.export."""

    path: str
    model: Model | None = None
    keys: Sequence[str] | None = None
    labels: Mapping[str, Labels] | None = None
    tolerance: float = 1e-5
    keep: int | None = None
    platforms: Sequence[str] = PLATFORMS
    assets_extra: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        """Raises OptionError for values that are not allowed."""
        check_place(self.path)
        if not 0 <= self.tolerance < math.inf:
            raise OptionError(f"tolerance={self.tolerance} must be at least 0 and finite.")
        if self.keep is not None:
            check_positive_int("keep", self.keep)
        if unknown := [name for name in self.platforms if name not in PLATFORMS]:
            raise OptionError(f"platforms has {unknown[0]!r}. Allowed: one or more of {', '.join(PLATFORMS)}.")
        if not self.platforms:
            raise OptionError(f"platforms is empty. Allowed: one or more of {', '.join(PLATFORMS)}.")
        for name, path in (self.assets_extra or {}).items():
            check_asset(name, path)
        for key, found in (self.labels or {}).items():
            if any(not isinstance(name, str) for name in found.names):
                raise OptionError(f"labels[{key!r}] has a name that is not a str: {found.names!r}.")
