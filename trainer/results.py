"""The results of the Trainer's methods: as text, for people, and as files in the work directory."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from pipeline.epoch import proof_of
from pipeline.sizes import counted
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join, write_file
from trainer.reports.progress import Speed
from trainer.reports.workdir import EVAL_RESULT, TRAIN_RESULT
from trainer.task import TrainState

__all__ = ["EvalResult", "EvaluatedRecords", "ExportResult", "Goodput", "Speed", "TrainResult"]


@dataclass(frozen=True)
class Goodput:
    """productive_seconds: in the training loop, for the steps of the checkpoint: without
    compilation, evaluations and pauses for saving. A step that was trained, lost and trained again
    counts once. wall_seconds: since training first began in the work directory, whether or not a
    run was active."""

    productive_seconds: float
    wall_seconds: float

    @property
    def share(self) -> float:
        """The share of the wall time that was productive, 0..1."""
        return min(1.0, self.productive_seconds / max(self.wall_seconds, 1e-9))


@dataclass(frozen=True, repr=False)
class EvalResult:
    """The metrics of one epoch: means over its records, and the scalars of each Metric, "name/key"
    if it has several.

    step: of the checkpoint.
    seconds: that the epoch took, without compilation.
    arrays: the other values of each Metric, such as a confusion matrix, by name; not compared by
        ==.
    records: rows that counted.
    labelled: those of them that have a label, over which the metrics are; all, without a Target.
    masked: bad records that the input left out, over all hosts; the log of each host names its own.
    unseen: values of categories that the model has never seen, which count as missing.
    num_records: expected rows; None for a plain iterable.
    crc, expected_crc: sums mod 2**32 of the records' crcs, as delivered (as expected for a masked
        one) and as expected.
    name: of the evaluation, if it has one.
    totals: integers that metrics added up, such as num_bytes; those that the dataset states are
        equal.
    not_finite: of each metric that is not finite, why, such as "not finite for 3 of 80 records".
    classes: "classes not compared" where the model's data or these have no names of classes to
        compare, "class numbers assumed to match (same_classes)" where only one of the two has; else
        "".
    copies: how many of the split's records are also in each other split, by split; None if that is
        not known.
    checkpoint_path: as given to the evaluation.
    data, fingerprint: what the input calls its records, and what identifies them."""

    step: int
    metrics: dict[str, float]
    records: int
    labelled: int
    masked: int
    num_records: int | None
    crc: int
    expected_crc: int | None
    seconds: float
    arrays: dict[str, np.ndarray] = field(default_factory=dict, compare=False)
    name: str | None = None
    totals: dict[str, int] = field(default_factory=dict)
    unseen: int = 0
    not_finite: dict[str, str] = field(default_factory=dict)
    classes: str = ""
    copies: Mapping[str, int] | None = None
    checkpoint_path: str | None = None
    data: str | None = None
    fingerprint: str = ""

    def __str__(self) -> str:
        metrics = sorted(self.metrics.items(), key=lambda item: "accuracy" not in item[0])
        values = [
            f"{name} {value:{'.2%' if 'accuracy' in name else '.4f'}}" for name, value in metrics
        ]
        unlabelled = self.labelled < self.records
        due = self.records if unlabelled else self.num_records
        notes = [self.classes] if self.classes else []
        notes += [f"{name} is {why}" for name, why in self.not_finite.items()]
        if self.unseen:
            notes.append(
                f"categories never seen count as missing ({counted(self.unseen, 'value')})"
            )
        records = f"{self.labelled} {'labelled ' * unlabelled}{f'of {due} ' if due else ''}records"
        of = f" of {self.data}" if self.data else ""
        proof = proof_of(self.proven, self.masked, self.copies)
        return "; ".join(
            [f"step {self.step}: {', '.join(values)} over {records}{of}, {proof}", *notes]
        )

    __repr__ = __str__  # a notebook shows the result of its last line

    def write(self, workdir: str) -> None:
        """Writes eval_result.json, for `infeed report`."""
        numbers = {
            key: value
            for key, value in asdict(self).items()
            if key not in ("metrics", "arrays", "totals")
        }
        _write(workdir, EVAL_RESULT, self.metrics | self.totals | numbers | {"proven": self.proven})

    @property
    def proven(self) -> bool:
        """Whether the input knew which records to expect, and delivered exactly these.

        False with masked records, even if all others are accounted for: the means are not those of
        the split."""
        expected = (self.num_records, self.expected_crc)
        return None not in expected and expected == (self.records, self.crc)


@dataclass(frozen=True)
class EvaluatedRecords:
    """Records with a label that an evaluation counted, of all hosts, without padding and bad
    records.

    index: int32 [n], their numbers in the dataset; None if the input does not number them. loss:
    float32 [n]. predictions: by name, those of the task's predict_fn that are one number per
    record, each [n]; {} if the task cannot predict."""

    index: np.ndarray | None
    loss: np.ndarray
    predictions: Mapping[str, np.ndarray]


@dataclass(frozen=True, repr=False)
class TrainResult:
    """A call of train, from `start_step` to `step`, with the metrics of the last step.

    state and speed are None if there was nothing to do. The speed is that of the loop, without
    compilation. stopped: why it ended before its goal; None if it did not. evaluations: those of
    train_and_evaluate. executables: number of programs compiled for the loop. goodput: of the work
    directory, with all its runs; None on hosts other than host 0, and in a fast_dev_run. weighted:
    whether the task weighs the losses."""

    start_step: int
    step: int
    state: TrainState | None
    metrics: dict[str, float]
    speed: Speed | None
    executables: int
    stopped: str | None = None
    evaluations: tuple[EvalResult, ...] = ()
    goodput: Goodput | None = None
    weighted: bool = False

    def __str__(self) -> str:
        values = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
        steps = f"steps {self.start_step} to {self.step}: {values or 'nothing to train'}"
        steps += ", where the loss is weighted" * self.weighted
        lines = [steps, self.speed, *self.evaluations]
        return "\n".join(str(line) for line in lines if line)

    __repr__ = __str__

    def write(self, workdir: str) -> None:
        """Writes train_result.json, for `infeed report`."""
        page = {"step": self.step} | (asdict(self.speed) if self.speed else {})
        page |= {"goodput": self.goodput.share} | asdict(self.goodput) if self.goodput else {}
        _write(workdir, TRAIN_RESULT, page)


def _write(workdir: str, name: str, page: dict[str, Any]) -> None:
    write_file(
        open_storage(workdir), join(workdir, name), json.dumps(page, indent=2).encode() + b"\n"
    )


@dataclass(frozen=True)
class ExportResult:
    """An export that was verified and published. path: of its directory. step: of the checkpoint.
    difference: the largest between its predictions and the trainer's, as a share of the largest
    value."""

    path: str
    step: int
    difference: float
