"""What the calls of the Trainer return."""

from dataclasses import dataclass, field

import numpy as np

from trainer.events.progress import Speed
from trainer.state import TrainState

__all__ = ["EvalResult", "TrainResult"]


@dataclass(frozen=True)
class EvalResult:
    """The metrics of one epoch: means over its records, and the scalars of each Metric; "name/key" where it has more.

    arrays: what a Metric has of other shapes, a confusion matrix say, by name; results are compared without them.
    records: rows that counted. masked: bad records, over all hosts, that the input left out; the log of each host names
    its own. num_records: rows that were due; None for a plain iterable. crc, expected_crc: sums of the records' crcs
    mod 2**32, delivered (of a masked one: promised) and due."""

    step: int
    metrics: dict[str, float]
    records: int
    masked: int
    num_records: int | None
    crc: int
    expected_crc: int | None
    seconds: float
    arrays: dict[str, np.ndarray] = field(default_factory=dict, compare=False)

    @property
    def proven(self) -> bool:
        """Whether the input could say what was due, and exactly that was delivered.

        With masked records it was not, though all others are accounted for: the means are not the split's own."""
        due = (self.num_records, self.expected_crc)
        return None not in due and due == (self.records, self.crc)


@dataclass(frozen=True)
class TrainResult:
    """A call of train: from `start_step` to `step`, and the last step's metrics.

    state and speed are None where there was nothing left to do. Speed is of the loop alone, without compilation.
    stopped: why it ended before its goal; None if it did not. evaluations: those of train_and_evaluate."""

    start_step: int
    step: int
    state: TrainState | None
    metrics: dict[str, float]
    speed: Speed | None
    executables: int
    stopped: str | None = None
    evaluations: tuple[EvalResult, ...] = ()
