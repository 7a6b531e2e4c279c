"""Records a run's scalars, images, histograms and texts. Training, evaluation and callbacks write only through it.

Each directory, <workdir>/train or <workdir>/eval, is a run in TensorBoard and has the same scalars in its
metrics.jsonl. Only the owner of the work directory writes to that of training; concurrent evaluations append to
theirs, and none replaces what another wrote."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any

import jax
import numpy as np

from pipeline.errors import OptionError, OwnerError, StorageError
from pipeline.logs import logger
from pipeline.storage.storage import explained, join
from trainer.config import TrainerConfig
from trainer.events.metrics_file import MetricsFile
from trainer.events.sinks import Fence, open_sink, unfenced
from trainer.events.writer import EventWriter

__all__ = ["Reports"]

log = logger("trainer")


class Reports:
    """Writes points to the run `name` of the work directory. Use as a context manager: leaving closes the files; then
    nothing is written any more.

    Only process 0 writes, and nothing in a fast_dev_run; `writes` tells whether this process does.
    after: the last step to keep of an interrupted run; 0 for a fresh start, None to keep all. If given, the settings
    are added as a text at that step. fence: called before anything becomes visible; if it raises, nothing does."""

    def __init__(self, config: TrainerConfig, name: str, after: int | None = None, fence: Fence = unfenced) -> None:
        self.writes = jax.process_index() == 0 and not config.fast_dev_run
        if self.writes:
            self._directory = directory = join(config.workdir, name)
            resumed_at = None if after is None else after + 1
            with self._naming():
                self._lines = MetricsFile(directory, after, fence)
                self._events = EventWriter(directory, resumed_at, open_sink=partial(open_sink, fence=fence))
        if after is not None:
            listing = json.dumps(config.to_json(), indent=1).splitlines()
            self.text(after, "config", "".join(f"    {line}\n" for line in listing))  # a Markdown code block

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the scalars of a step: a point each in TensorBoard, and together a line of metrics.jsonl.

        Training writes all of a step in one line; a callback's scalars are a separate line. Evaluating a step again
        adds another line: the last one counts. Both have the float32 nearest to a value. Raises OptionError for a
        scalar named "step" or "time"."""
        for name in ("step", "time"):
            if name in values:
                raise OptionError(
                    f"a scalar is named {name!r}, which is reserved: it is the {name}. Choose another name."
                )
        if self.writes:
            with self._naming(), np.errstate(over="ignore"):
                # Of nine digits of a float64, the nearest float32 may be another.
                values = {name: float(np.float32(value)) for name, value in values.items()}
                self._events.scalars(step, values)
                self._lines.scalars(step, values)

    def steps(self, first: int, columns: Mapping[str, np.ndarray]) -> None:
        """As `scalars`, for the steps first, first + 1, ...; `columns` has the values of each name, [steps]."""
        if self.writes:
            with self._naming():
                self._events.steps(first, columns)
                self._lines.steps(first, columns)

    def image(self, step: int, tag: str, images: Any) -> None:
        if self.writes:
            with self._naming():
                self._events.image(step, tag, images)

    def histogram(self, step: int, tag: str, values: Any) -> None:
        if self.writes:
            with self._naming():
                self._events.histogram(step, tag, values)

    def text(self, step: int, tag: str, text: str) -> None:
        if self.writes:
            with self._naming():
                self._events.text(step, tag, text)

    def flush(self, now: bool = False) -> None:
        """Makes the points visible to readers; in a bucket only at intervals, unless `now`."""
        if self.writes:
            with self._naming():
                self._events.flush(now)
                self._lines.flush(now)

    def __enter__(self) -> "Reports":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        files, self.writes = (self._events, self._lines) if self.writes else (), False
        for file in files:
            try:
                with self._naming():
                    file.close()
            except (StorageError, OwnerError) as lost:
                if error is None:
                    raise
                if str(lost) != str(error):
                    log.warning("%s", lost)  # the error that ended the run is more informative

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(f"cannot write to {self._directory}: {explained(error)}") from error
