"""The first records of an input, in every form in which a served model takes them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.hosts import ONE_HOST
from pipeline.inputs.serving import Serving
from trainer.batch_spec import named_leaves
from trainer.exporting.saved_model import ARRAYS, FEATURES, SERVING_DEFAULT
from trainer.inputs import INDEX, MASK, InputContext, InputFn, as_function, as_input
from trainer.setup import Setup

__all__ = ["Examples"]


@dataclass(frozen=True)
class Examples:
    """arrays: name -> [count, ...], of a batch. serving: None for an input that does not know how its records are
    stored; then arrays are their only form."""

    arrays: Mapping[str, np.ndarray]
    count: int
    serving: Serving | None

    @classmethod
    def first_of(cls, setup: Setup, input_fn: InputFn, needed: Collection[str], count: int) -> "Examples":
        """Up to `count` records, read by this host alone. needed: the arrays that the model takes."""
        hosts, config = replace(ONE_HOST, rows=(range(count),)), setup.config
        context = InputContext("predict", count, count, count, hosts, config.seed, 0, config.stall_seconds)
        source = as_input(as_function(input_fn)(context), count)
        batches = source.batches(source.info.start)
        batch = next(batches)
        getattr(batches, "close", lambda: None)()
        rows = np.flatnonzero(batch[MASK] > 0)[:count]
        arrays = {name: leaf[rows] for name, leaf in named_leaves(dict(batch)).items()}
        make = getattr(source, "serving", None)
        return cls(arrays, len(rows), make(list(needed)) if make is not None and INDEX in arrays else None)

    def inputs(self) -> dict[str, Mapping[str, Any]]:
        """By signature: name -> the values of all records. Raises as Serving.payloads."""
        found: dict[str, Mapping[str, Any]] = {ARRAYS: self.arrays}
        if self.serving is not None:
            payloads = self.serving.payloads(self.arrays[INDEX].tolist())
            found[SERVING_DEFAULT] = {self.serving.kind: payloads}
            found[FEATURES] = self.serving.stored_features(payloads)
        return found
