"""Writes the history of one training run: its start, the bad records that it leaves out, and its end."""

import contextlib
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

import jax

from pipeline.errors import InfeedError
from trainer.checkpointing.contents import versions
from trainer.cluster.decisions import Decision
from trainer.exits import Interrupted, Preempted
from trainer.history.segments import BadRecords, End, Hint, HistoryLine, Start, append, hint_of, no_hint
from trainer.inputs import Input
from trainer.setup import Setup

__all__ = ["Recorder"]

MOST_REASON = 300  # characters


class Recorder(AbstractContextManager):
    """Records one run. As a context manager, it also writes an end for an error that ends the run. run: its identity.

    Host 0 writes start and end; every host writes the bad records that it met. A fast_dev_run writes nothing.
    fence: raises if another run owns the work directory by now; then nothing is written."""

    def __init__(self, setup: Setup, source: Input, fence: Callable[[], None]) -> None:
        self._setup, self._source, self._fence = setup, source, fence
        self._workdir = None if setup.config.fast_dev_run else str(setup.config.workdir)
        self._provenance, self._known = source.info.provenance, set[int]()
        self.run, self._step = secrets.token_hex(8), 0

    @property
    def hint(self) -> Hint:
        """Names the command that shows the records of a step of this run."""
        if self._workdir is None or self._provenance is None:
            return no_hint
        return hint_of(self._workdir, by_loss=self._setup.command is not None)

    def start(self, step: int, position: Any, parent: str | None) -> None:
        """Writes the start of the run after this step, from this position of its input. parent: see Start."""
        self._step, config = step, self._setup.config
        mesh, processes = self._setup.placement.mesh, jax.process_count()
        devices = f"{mesh.size} x {mesh.devices.flat[0].device_kind}, {processes} process{'es' * (processes > 1)}"
        place = self._source.state(position)
        command = self._setup.command
        given = (self._provenance, config.to_json(), command, versions(), devices)
        self._write(Start(step, _now(), place, *given, self.run, parent))

    def reached(self, step: int) -> None:
        """Notes the last step, and writes the bad records that the input has met since the last call."""
        self._step = step
        found = self._source.info.quarantine
        if self._workdir is None or self._provenance is None or len(found) == len(self._known):
            return
        new = {bad.record_id: bad.reason for bad in found if bad.record_id not in self._known}
        self._known |= new.keys()
        self._fence()
        append(
            self._workdir,
            BadRecords(self._provenance["fingerprint"], {str(number): why for number, why in new.items()}),
        )

    def end(self, stopped: Decision) -> None:
        """Writes the end of the run. stopped: what ended it early, if anything."""
        how = "interrupted: " if stopped.interrupted else "preempted: " if stopped.preempted else ""
        self._end(f"{how}{stopped.stop}" or "finished")

    def _end(self, reason: str) -> None:
        self._write(End(self._step, _now(), reason[:MOST_REASON]))

    def _write(self, line: HistoryLine) -> None:
        if self._workdir is not None and jax.process_index() == 0:
            self._fence()
            append(self._workdir, line)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            return
        with contextlib.suppress(InfeedError):  # of the disk, or of a new owner: `error` says more
            how = {Interrupted: "interrupted: ", Preempted: "preempted: "}.get(type(error), "")
            self._end(f"{how}{error}" or type(error).__name__)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
