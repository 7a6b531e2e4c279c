"""segments.jsonl: one line for each start of a training run in a work directory, and one for its end.

Nothing is written per step: from a start, the records of every later step can be computed. Needs neither JAX nor
TensorFlow."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from pipeline.errors import CheckpointError
from pipeline.shards.typed_json import JsonFile
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join

__all__ = ["NAME", "BadRecords", "Command", "End", "History", "Line", "Start", "append", "read_history"]

NAME = "segments.jsonl"


@dataclass(frozen=True)
class Command:
    """The command that started a run: a recipe, its options, and the directory they are relative to."""

    recipe: str
    options: Sequence[str]
    directory: str


@dataclass(frozen=True)
class Start:
    """A run began to train from the state after this step, 0 for a new model.

    position: of the input, as checkpoints have it. input: its provenance, see DatasetInput; None if the input has none.
    settings: of the TrainerConfig. command: None for a program that uses the Trainer. devices: number and kind."""

    step: int
    time: str
    position: Mapping[str, Any]
    input: Mapping[str, Any] | None
    settings: Mapping[str, Any]
    command: Command | None
    versions: Mapping[str, str]
    devices: str


@dataclass(frozen=True)
class BadRecords:
    """Records that a host left out, by number. fingerprint: of the input that they are from."""

    fingerprint: str
    records: Mapping[str, str]
    """Number -> reason."""


@dataclass(frozen=True)
class End:
    """A run ended after this step. reason: "finished", or what stopped it. A killed process leaves no such line."""

    step: int
    time: str
    reason: str


Line = Start | BadRecords | End
KINDS: Mapping[str, type[Line]] = {"start": Start, "bad records": BadRecords, "end": End}
NAMES = {kind: name for name, kind in KINDS.items()}


@dataclass(frozen=True)
class History:
    """The lines of a work directory, in the order written."""

    lines: Sequence[Line] = field(default_factory=tuple)

    @property
    def starts(self) -> list[Start]:
        """All starts, the earliest first."""
        return [line for line in self.lines if isinstance(line, Start)]

    def start_of(self, step: int) -> Start | None:
        """The start whose run trained this step: of several, the last one, as its run replaced what others did."""
        return next((start for start in reversed(self.starts) if start.step < step), None)

    def bad_records(self, fingerprint: str) -> dict[int, str]:
        """Number -> reason of the records that were left out of this input."""
        known = [line for line in self.lines if isinstance(line, BadRecords) and line.fingerprint == fingerprint]
        return {int(number): reason for line in known for number, reason in line.records.items()}


def append(workdir: str, line: Line) -> None:
    """Adds a line. Hosts may do so at the same time. Raises StorageError."""
    text = json.dumps({"kind": NAMES[type(line)]} | asdict(line)).encode() + b"\n"
    path = join(str(workdir), NAME)
    open_storage(path).update(path, lambda old: (old or b"") + text)


def read_history(workdir: str) -> History:
    """The history; empty if there is none. Raises CheckpointError, which names the line, if it is damaged."""
    path = join(str(workdir), NAME)
    storage = open_storage(path)
    if not storage.exists(path):
        return History()
    texts = enumerate(storage.read(path).splitlines(), 1)
    return History([_line(JsonFile(f"{path}, line {number}", CheckpointError, REMEDY), text) for number, text in texts])


REMEDY = "The file is damaged: remove the line, and the rest can be used."


def _line(file: JsonFile, text: bytes) -> Line:
    page = file.parse(text)
    kind = KINDS.get(page.pop("kind", "")) if isinstance(page, dict) else None
    if kind is None:
        raise file.misfit(f"its kind is none of {', '.join(KINDS)}.")
    try:
        return msgspec.convert(page, kind)  # a later infeed may write further keys, which are skipped
    except msgspec.ValidationError as e:
        raise file.misfit(f"{e}.") from e
