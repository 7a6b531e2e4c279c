"""segments.jsonl: a line for each start of a training run in a work directory, for its bad records,
and for its end.

Nothing is written per step: from a start, the records of every later step can be computed. Needs
neither JAX nor TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

import msgspec

from pipeline.errors import CheckpointError, OptionError
from pipeline.shards.typed_json import JsonFile, sealed_line, unsealed
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join, read_file
from trainer.reports.workdir import SEGMENTS


@dataclass(frozen=True)
class Invocation:
    """The command that started a run: a recipe, its options, and the directory they are relative
    to."""

    recipe: str
    options: Sequence[str]
    directory: str


@dataclass(frozen=True)
class Start:
    """A run began to train from the state after this step, 0 for a new model.

    position: of the input, as checkpoints have it.
    input: its provenance, see DatasetInput; None if the input has none.
    settings: of the TrainerConfig; max_steps is the last step of the run, whatever sets it, and
        None if the input's end does.
    command: None for a program that uses the Trainer.
    devices: number and kind.
    run: identifies this run; its checkpoints name it.
    parent: the run that saved the state; None for a new model, and for a checkpoint that does not
        tell.
    reported: the last step in metrics.jsonl, from which the run removes those after its first; None
        if it has none.
    batch: dtype and shape of each array of a batch of one row."""

    step: int
    time: str
    position: Mapping[str, Any]
    input: Mapping[str, Any] | None
    settings: Mapping[str, Any]
    command: Invocation | None
    versions: Mapping[str, str]
    devices: str
    run: str = ""
    parent: str | None = None
    reported: int | None = None
    batch: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BadRecords:
    """Records that a host left out, by number. fingerprint: of the input that they are from."""

    fingerprint: str
    records: Mapping[str, str]
    """Number -> reason."""


@dataclass(frozen=True)
class End:
    """A run ended after this step. reason: "finished", or what stopped it. A killed process leaves
    no such line."""

    step: int
    time: str
    reason: str


HistoryLine = Start | BadRecords | End
KINDS: Mapping[str, type[HistoryLine]] = {"start": Start, "bad records": BadRecords, "end": End}
NAMES = {kind: name for name, kind in KINDS.items()}


@dataclass(frozen=True)
class Segment:
    """A start, and the lines up to the next one."""

    start: Start
    lines: list[BadRecords | End]

    @property
    def end(self) -> End | None:
        """None while the run is alive, or if it was killed."""
        return next((line for line in self.lines if isinstance(line, End)), None)

    @property
    def bad_records(self) -> dict[int, str]:
        """Number -> reason of the records of its input that this run left out."""
        fingerprint = self.start.input["fingerprint"] if self.start.input else None
        return _bad_records(self.lines, fingerprint)


@dataclass(frozen=True)
class History:
    """The lines of a work directory, in the order written."""

    lines: Sequence[HistoryLine] = field(default_factory=tuple)

    @property
    def starts(self) -> list[Start]:
        """All starts, the earliest first."""
        return [line for line in self.lines if isinstance(line, Start)]

    @property
    def command(self) -> Invocation | None:
        """The command of the newest start; None if there is none."""
        return self.starts[-1].command if self.starts else None

    @cached_property
    def segments(self) -> list[Segment]:
        """The starts, each with its lines, the earliest first."""
        segments = list[Segment]()
        for line in self.lines:
            if isinstance(line, Start):
                segments.append(Segment(line, []))
            elif segments:
                segments[-1].lines.append(line)
        return segments

    @cached_property
    def lineage(self) -> list[Segment]:
        """The last segment, then the one that saved the state it began with, and so on: those that
        made the model. Others went back to an earlier checkpoint, and ended before they saved
        one."""
        lineage = self.segments[-1:]
        for segment in reversed(self.segments[:-1]):
            start, earlier = lineage[-1].start, segment.start
            is_parent = earlier.run == start.parent if start.parent else earlier.step < start.step
            if start.step > 0 and is_parent:
                lineage.append(segment)
        return lineage

    def bad_records(self, fingerprint: str) -> dict[int, str]:
        """Number -> reason of the records that any run left out of this input."""
        return _bad_records(self.lines, fingerprint)


def _bad_records(lines: Sequence[HistoryLine], fingerprint: str | None) -> dict[int, str]:
    reasons = dict[int, str]()
    for line in lines:
        if isinstance(line, BadRecords) and line.fingerprint == fingerprint:
            reasons |= {int(number): reason for number, reason in line.records.items()}
    return reasons


def segment_of(history: History, step: int, workdir: str) -> Segment:
    """The segment that trained this step of the current model, or else the last one that trained
    such a step. The last run may be alive unless it has an end, so later steps are taken for its
    own.

    Raises OptionError for a step that no recorded run trained; CheckpointError if there is no
    history."""
    if step < 1:
        raise OptionError(f"step {step} does not exist: the first step of training is 1.")
    if not history.starts:
        raise CheckpointError(
            f"{workdir} has no {SEGMENTS}, so no step can be traced. Training writes it when it "
            "starts; give the --workdir of a run, by this version of infeed or a later one."
        )
    own = next((each for each in history.lineage if each.start.step < step), None)
    if own is not None and (own.end is None or step <= own.end.step):
        return own
    for segment in reversed(history.segments):
        if segment.end and segment.start.step < step <= segment.end.step:
            return segment
    first = min(start.step for start in history.starts)
    last = history.segments[-1].end
    if step > first and last is not None:
        raise OptionError(
            f"step {step} was not trained: the last run in {workdir} ended at step {last.step} "
            f"({last.reason})."
        )
    raise OptionError(
        f"step {step} is before the history of {workdir}, which begins after step {first}: an "
        "earlier version of infeed trained the first steps."
    )


def append(workdir: str, line: HistoryLine) -> None:
    """Adds a line. Hosts may do so at the same time. Raises StorageError."""
    text = sealed_line({"kind": NAMES[type(line)]} | asdict(line))
    path = join(str(workdir), SEGMENTS)
    open_storage(path).update(path, lambda old: (old or b"") + text)


def read_history(workdir: str) -> History:
    """The history; empty if there is none. Raises CheckpointError, which names the line, if it is
    damaged."""
    path = join(str(workdir), SEGMENTS)
    data = read_file(open_storage(path), path)
    if data is None:
        return History()
    if not data.strip():
        raise CheckpointError(
            f"{path} is empty: it is damaged. Remove it: then the steps so far cannot be traced."
        )
    return History(
        [
            _line(JsonFile(f"{path}, line {number}", CheckpointError, REMEDY), text)
            for number, text in enumerate(data.splitlines(), 1)
            if text.strip()
        ]
    )


REMEDY = "The file is damaged: remove the line, and the rest can be used."


def _line(file: JsonFile, text: bytes) -> HistoryLine:
    page, _ = unsealed(file, text)
    kind = KINDS.get(str(page.pop("kind", "")))
    if kind is None:
        raise file.misfit(f"its kind is none of {', '.join(KINDS)}.")
    try:
        # a later infeed may write further keys, which are skipped
        line = msgspec.convert(page, kind)
        datetime.fromisoformat(page.get("time", "2026-01-01"))
        _bad_records([line], page.get("fingerprint"))  # ValueError if a number is none
        return line
    # ValueError: no time or number, or a lone surrogate in a key
    except (msgspec.ValidationError, ValueError) as e:
        raise file.misfit(f"{e}.") from e
