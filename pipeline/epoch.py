"""The proof of an epoch, for a loop of any framework: every record that is due came once.

The trainer proves its evaluations with it, too. NumPy only."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline.errors import EvaluationError, InputError, OptionError
from pipeline.inputs.input_info import InputInfo, proven_by
from pipeline.shards.copies import in_others
from pipeline.sizes import counted
from pipeline.sources.records import RecordsInfo
from pipeline.spec import CRC, INDEX, MASK, RESERVED

__all__ = ["Counted", "Epoch", "check_counts"]

REMEDY = "Keep _mask, _index and _crc in every batch."


class Counted(NamedTuple):
    """What an epoch counted.

    records: rows that count. masked: bad records that the input left out. crc: the sum of the
    crc32c of both, modulo 2**32. proven: whether it was known which records are due, and none is
    masked."""

    records: int
    masked: int
    crc: int
    proven: bool


class Epoch:
    """Adds up the batches of one epoch in a loop of your own; check() raises EvaluationError unless
    every record that is due came exactly once.

    data: what the batches come from: the records of open_dataset, a pipeline.grain.source, or an
        input of eval_dataset or evaluation_batches, also as a tf.data.Dataset.
    counts: int64 [3], so far: the records, the masked ones, and the sum of the checksums.

    With several processes, each has an Epoch; add up their `counts`, and give the sum to check().
    Raises OptionError for data that do not say what an epoch has, as those of train_dataset."""

    def __init__(self, data: Any) -> None:
        info = getattr(getattr(data, "infeed_input", data), "info", None)
        if isinstance(info, RecordsInfo):
            info = proven_by(InputInfo(RESERVED, info.fingerprint), info)
        if not isinstance(info, InputInfo) or info.endless or info.num_records is None:
            raise OptionError(
                f"{data!r:.100} does not say which records an epoch has. Give Epoch what "
                "open_dataset, eval_dataset or evaluation_batches returned."
            )
        self.counts = np.zeros(3, np.int64)
        self._info = info

    def add(self, batch: Mapping[str, Any]) -> None:
        """Counts the rows of a batch by its `_crc` [b], `_index` [b] and `_mask` [b], arrays or
        tensors in the host's memory. Without a `_mask` every row counts.

        Raises InputError for a batch without `_crc`, or if their shapes differ."""
        if CRC not in batch:
            raise InputError(f"the batch has no {CRC}, but {', '.join(batch)}. {REMEDY}")
        crc = np.asarray(batch[CRC]).astype(np.int64)
        counts = np.asarray(batch.get(MASK, np.ones(crc.shape))) > 0
        index = np.asarray(batch.get(INDEX, np.full(crc.shape, -1)))
        if not counts.shape == index.shape == crc.shape:
            raise InputError(
                f"{CRC} has the shape {[*crc.shape]}, {MASK} {[*counts.shape]} and {INDEX} "
                f"{[*index.shape]}; all have a number per row. {REMEDY}"
            )
        bad = (index >= 0) & ~counts
        self.counts += [counts.sum(), bad.sum(), crc[counts | bad].sum()]

    def check(self, counts: np.ndarray | None = None) -> Counted:
        """What the epoch counted. EvaluationError unless that is what is due.

        counts: int64 [3], the sum over all processes; default: this one's. InputError for another
        shape."""
        counts = self.counts if counts is None else np.asarray(counts)
        if counts.shape != self.counts.shape:
            raise InputError(
                f"counts has the shape {[*counts.shape]}; it must be [3], the sum over processes."
            )
        return check_counts(self._info, counts)


def check_counts(
    info: InputInfo,
    counts: Sequence[int] | np.ndarray,
    call: str = "loop",
    so: str = "its results are not the split's",
) -> Counted:
    """What an epoch of the input counted. EvaluationError unless everything that is due came once.

    counts: see Epoch; masked records count only if the input may leave them out. call: what
    messages call the loop. so: the consequence for its results."""
    records, masked, crc = (int(count) for count in counts)
    masked = masked if info.on_error == "mask" else 0
    crc %= 2**32
    due, expected = info.num_records, info.expected_crc
    left_out = f" and left out {masked} as bad" if masked else ""
    if due is not None and records + masked != due:
        raise EvaluationError(
            f"the {call} counted {records} records{left_out}; the split has {due}. The input "
            f"delivered a record twice or not at all, or its _mask is wrong; {so}. "
            f"{_next_step(info)}"
        )
    if expected is not None and crc != expected:
        raise EvaluationError(
            f"the {call} counted {records} records{left_out} as due, but their crcs add up to "
            f"{crc:08x} and not to the index's {expected:08x}. Some record was delivered in place "
            f"of another; {so}. {_next_step(info)}"
        )
    if records == 0:
        raise EvaluationError(
            f"no row of the input has a _mask above 0{' (all are bad)' * bool(left_out)}, so the "
            f"{call} has nothing to count. {_next_step(info)}"
        )
    return Counted(records, masked, crc, not masked and None not in (due, expected))


def proof_of(proven: bool, masked: int, copies: Mapping[str, int] | None) -> str:
    """Whether an epoch is proven, or why not; and how many of its records are in other splits, if
    that is known. masked: see Counted."""
    unproven = "the input does not state which records are due"
    if masked:
        unproven = f"{counted(masked, 'bad record')} left out"
    return ", ".join(["proven exact" if proven else f"not proven: {unproven}", *in_others(copies)])


def _next_step(info: InputInfo) -> str:
    if command := info.verify_command:
        step = (
            f"To see damaged records: {command}. If it finds none, check what is between the "
            "dataset and what counts its batches: a wrapper, or an input or source of your own."
        )
    else:
        step = (
            "Check the input's batches: in an epoch each record must come once, with its number "
            "in _index and a _mask above 0. For converted shards, infeed verify DIR --decode lists "
            "damaged records."
        )
    return f"{step} The proof is described in ARCHITECTURE.md, How an evaluation is proven."
