"""Which records are damaged or cannot be decoded, and how many of them an input may have."""

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike, fspath
from typing import Any, Literal, get_args

from pipeline.checks import check_choice, check_number
from pipeline.errors import BadRecordsError, OptionError, StorageError
from pipeline.logs import log
from pipeline.shards.typed_json import JsonFile
from pipeline.storage.schemes import open_storage

MAX_BAD_RECORDS = 100
NAMED = 3
OnError = Literal["raise", "skip", "mask"]


@dataclass(frozen=True, order=True)
class BadRecord:
    """A record that is damaged or cannot be decoded.

    record_id: its number in the source. where: its file and place. reason: the error that "raise"
    would raise."""

    record_id: int
    where: str
    reason: str


class Quarantine(Sequence[BadRecord]):
    """The distinct bad records that a host has met so far, by number, and its budget of them.
    Threads may share it.

    on_error: what to do about them. quarantine_file: a path that also lists them, as
    sorted JSON lines; hosts and runs add to one file."""

    def __init__(
        self,
        on_error: OnError = "raise",
        max_bad_records: int = MAX_BAD_RECORDS,
        quarantine_file: str | PathLike[str] | None = None,
    ) -> None:
        check_choice("on_error", on_error, get_args(OnError))
        check_number("max_bad_records", max_bad_records, at_least=0)
        if quarantine_file is not None and on_error == "raise":
            raise OptionError(
                f"quarantine_file={fspath(quarantine_file)!r} lists what was left out, but "
                "on_error='raise' leaves nothing out. Give on_error='mask' or 'skip', or no file."
            )
        self.on_error: OnError = on_error
        self.max_bad_records = max_bad_records
        self._file = None if quarantine_file is None else _File(fspath(quarantine_file))
        self._lock = threading.Lock()
        self._met = dict[int, BadRecord]()

    def __len__(self) -> int:
        return len(self._met)

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]

    def __iter__(self) -> Iterator[BadRecord]:
        with self._lock:
            return iter(sorted(self._met.values()))

    def add(self, records: Iterable[BadRecord]) -> None:
        """Adds the new ones among them, and logs a warning for each. BadRecordsError if they exceed
        the budget."""
        with self._lock:
            new = [
                self._met.setdefault(bad.record_id, bad)
                for bad in records
                if bad.record_id not in self._met
            ]
            for bad in new:
                log.warning("on_error=%r leaves out a bad record: %s", self.on_error, bad.reason)
            if new and self._file:
                self._file.add(new)
            if len(self._met) > self.max_bad_records:
                raise BadRecordsError(
                    f"{len(self._met)} records are bad on this host; "
                    f"max_bad_records={self.max_bad_records}. The first are:",
                    *(f"  {bad.reason}" for bad in sorted(self._met.values())[:NAMED]),
                    "So many are unlikely by chance: check the disk and the conversion (infeed "
                    "verify), or raise max_bad_records.",
                )


class _File:
    """A quarantine file: one JSON object per line and place, sorted by number."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._storage = open_storage(path)
        remedy = "It is not a quarantine file: give the name of a new one."
        self._file = JsonFile(f"quarantine_file={path!r}", OptionError, remedy)
        if self._storage.exists(path):  # do not overwrite another file, given by mistake
            self._merged(self._storage.read(path), {})

    def add(self, new: Iterable[BadRecord]) -> None:
        """Adds records. Only warns if the file cannot be written: the run is meant to continue."""
        lines = {bad.where: (bad.record_id, json.dumps(asdict(bad)).encode()) for bad in new}
        try:
            self._storage.update(self._path, lambda old: self._merged(old or b"", lines))
        except StorageError as e:
            log.warning("bad records are only in the log, not in the quarantine_file: %s", e)

    def _merged(self, old: bytes, new: Mapping[str, tuple[int, bytes]]) -> bytes:
        # Keep the first line of a place, or hosts whose reasons differ would change it forever.
        listed = [(self._file.read(line, BadRecord), line) for line in old.splitlines()]
        lines = dict(new) | {bad.where: (bad.record_id, line) for bad, line in listed}
        return b"".join(line + b"\n" for _, line in sorted(lines.values()))
