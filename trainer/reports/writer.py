"""Records a run's scalars, images, histograms and texts. Training, evaluation and callbacks write
only through Reports.

Each directory, <workdir>/train or <workdir>/eval, is a run in TensorBoard and has the same scalars
in its metrics.jsonl. Only the owner of the work directory writes to that of training; concurrent
evaluations append to theirs, and none replaces what another wrote.

TensorBoard's event files are tensorboard's protos in the record framing of the shards: other
writers import tensorflow if it is installed, and have no fence. Images, histograms and texts are
tensors tagged with the plugin that shows them, as tf.summary writes them."""

# The modules of the protos define their classes at import.
# pyright: reportAttributeAccessIssue=false

import functools
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import numpy as np
from PIL import Image
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.util.tensor_util import make_tensor_proto

from pipeline.errors import OptionError, OwnerError, StorageError
from pipeline.logs import logger
from pipeline.shards.example import varint
from pipeline.shards.frames import frame
from pipeline.storage.storage import explained, join
from trainer.config import TrainerConfig
from trainer.reports.metrics_file import Fence, MetricsFile, Sink, SinkWriter, open_sink, unfenced
from trainer.reports.metrics_lines import scalars_by_step
from trainer.reports.workdir import event_file

MOST_IMAGES = 16  # per point; an event file is no place for a complete batch
BUCKETS = 30  # TensorBoard's own default
CHANNELS = (1, 3, 4)

_STEP = b"\x10"  # the tag of Event.step: field 2, a varint

log = logger("trainer")


class EventWriter(SinkWriter):
    """Writes points to a new event file in `directory`; TensorBoard shows each directory as one
    run.

    resumed_at: the first step after a resume; TensorBoard drops points from there on that an
    interrupted run left. open_sink: (directory, name, first record) -> the sink of the events; the
    default writes to the directory."""

    def __init__(
        self,
        directory: str,
        resumed_at: int | None = None,
        clock: Callable[[], float] = time.time,
        open_sink: Callable[[str, str, bytes], Sink] = open_sink,
    ) -> None:
        self._clock = clock
        head = _record(Event(wall_time=clock(), file_version="brain.Event:2"))
        self._sink = open_sink(directory, event_file(clock()), head)
        if resumed_at is not None:
            restart = SessionLog(status=SessionLog.START)
            event = Event(wall_time=clock(), step=resumed_at, session_log=restart)
            self._sink.write(_record(event))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes all `values` of a step as one event."""
        self.add(step, scalar_summary(values))

    def steps(self, first: int, columns: Mapping[str, np.ndarray]) -> None:
        """Writes an event per step first, first + 1, ...; `columns` has the values of each name,
        [steps]."""
        self._sink.write(b"".join(map(frame, scalar_events(self._clock(), first, columns))))

    def add(self, step: int, summary: Summary) -> None:
        """Writes a point."""
        self._sink.write(_record(Event(wall_time=self._clock(), step=step, summary=summary)))


def _record(event: Event) -> bytes:
    return frame(event.SerializeToString())


def scalar_events(
    wall_time: float, first: int, columns: Mapping[str, np.ndarray]
) -> Iterator[bytes]:
    """The serialized events of the steps first, first + 1, ...: `columns` has the values of each
    name, [steps].

    Training writes one for every step. Serializing each with protobuf takes several times as long,
    about as long as a step of a small model. Here protobuf makes a template once per set of names,
    and NumPy copies the values into it."""
    template, ends = _template(tuple(columns))
    rows = np.repeat(template, len(next(iter(columns.values()))), axis=0)
    for end, column in zip(ends, columns.values(), strict=True):
        rows[:, end - 4 : end] = column.astype("<f4")[:, None].view(np.uint8)
    start = Event(wall_time=wall_time).SerializeToString() + _STEP
    packed = rows.tobytes()
    size = rows.shape[1]
    for i in range(len(rows)):
        yield b"".join((start, varint(first + i), packed[i * size : i * size + size]))


@functools.lru_cache(maxsize=64)
def _template(names: tuple[str, ...]) -> tuple[np.ndarray, list[int]]:
    """The bytes of an event's summary, uint8 [1, size], and where the float32 of each name ends in
    them."""
    data = Event(summary=scalar_summary(dict.fromkeys(names, 0.0))).SerializeToString()
    sizes = [scalar_summary({name: 0.0}).ByteSize() for name in names]
    ends = len(data) - sum(sizes) + np.cumsum(sizes)
    return np.frombuffer(data, np.uint8)[None], ends.tolist()


def scalar_summary(values: Mapping[str, float]) -> Summary:
    """One scalar per tag."""
    return Summary(
        value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    )


def image_summary(tag: str, images: Any) -> Summary:
    """One image, or the first 16 of several, as PNG; see Reports.image."""
    images = _pixels(tag, images)[:MOST_IMAGES]
    _, height, width, _ = images.shape
    sizes = [str(width).encode(), str(height).encode()]
    return _tensor(tag, "images", [*sizes, *map(_png, images)])


def text_summary(tag: str, text: str) -> Summary:
    """A Markdown text."""
    return _tensor(tag, "text", [text.encode()])


def histogram_summary(tag: str, values: Any) -> Summary:
    """The finite values in 30 buckets of equal width: rows of left edge, right edge, count."""
    numbers = np.asarray(values, np.float64).ravel()
    numbers = numbers[np.isfinite(numbers)]
    table = np.zeros((BUCKETS, 3))
    if numbers.size and numbers.min() == numbers.max():
        # NumPy would widen the range to 1. TensorBoard writes a single value this way.
        table[:, :2], table[-1, 2] = numbers[0], numbers.size
    elif numbers.size:
        counts, edges = np.histogram(numbers, BUCKETS)
        table = np.stack([edges[:-1], edges[1:], counts], axis=1)
    return _tensor(tag, "histograms", table)


def _pixels(tag: str, images: Any) -> np.ndarray:
    """uint8 [n, h, w, c]."""
    array = np.asarray(images)
    if array.ndim == 3:
        array = array[None]
    if array.ndim != 4 or array.shape[3] not in CHANNELS or 0 in array.shape:
        raise OptionError(
            f"the image {tag!r} has the shape {list(np.shape(images))}. Give [h, w, c] or [n, h, "
            "w, c] with 1 (grey), 3 (RGB) or 4 (RGBA) channels."
        )
    if array.dtype == np.uint8:
        return array
    array = array.astype(np.float32)
    low = float(array.min())
    high = float(array.max())
    if not (low >= 0 and high <= 1):
        raise OptionError(
            f"the image {tag!r} has values in {low:.4g}..{high:.4g}. Give uint8, or floats in "
            "0..1: undo the normalization, for example (x - x.min()) / (x.max() - x.min())."
        )
    return np.rint(array * 255).astype(np.uint8)


def _png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(file, "PNG")
    return file.getvalue()


def _tensor(tag: str, plugin: str, values: list[bytes] | np.ndarray) -> Summary:
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))
    return Summary(
        value=[Summary.Value(tag=tag, metadata=metadata, tensor=make_tensor_proto(values))]
    )


class Reports:
    """Writes points to the run `name` of the work directory. Use as a context manager: leaving
    closes the files; then nothing is written any more.

    Only process 0 writes, and nothing in a fast_dev_run; `writes` tells whether this process does.
    after: the last step to keep of an interrupted run; 0 for a fresh start, None to keep all. If
    given, the settings are added as a text at that step. fence: called before anything becomes
    visible; if it raises, nothing does."""

    def __init__(
        self, config: TrainerConfig, name: str, after: int | None = None, fence: Fence = unfenced
    ) -> None:
        self.writes = jax.process_index() == 0 and not config.fast_dev_run
        self._directory = join(config.workdir, name)
        if self.writes:
            resumed_at = None if after is None else after + 1
            with self._naming():
                self._lines = MetricsFile(self._directory, after, fence)
                self._events = EventWriter(
                    self._directory, resumed_at, open_sink=partial(open_sink, fence=fence)
                )
        if after is not None:
            listing = json.dumps(config.to_json(), indent=1).splitlines()
            # a Markdown code block
            self.text(after, "config", "".join(f"    {line}\n" for line in listing))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the scalars of a step: a point each in TensorBoard, and together a line of
        metrics.jsonl.

        Training writes all of a step in one line; a callback's scalars are a separate line.
        Evaluating a step again adds another line: the last one counts. Both have the float32
        nearest to a value. Raises OptionError for a scalar named "step" or "time"."""
        if reserved := {"step", "time"}.intersection(values):
            raise OptionError(
                f"a scalar is named {min(reserved)!r}, which is reserved. Choose another name."
            )

        with np.errstate(over="ignore"):
            # Of nine digits of a float64, the nearest float32 may be another.
            values = {name: float(np.float32(value)) for name, value in values.items()}
        self._each(lambda file: file.scalars(step, values))

    def earlier(self, step: int) -> dict[int, dict[str, float]]:
        """The scalars of each step before this one, also those that runs before this one wrote; {}
        on a process that does not write."""
        return scalars_by_step(self._directory, step) if self.writes else {}

    def steps(self, first: int, columns: Mapping[str, np.ndarray]) -> None:
        """Writes like `scalars`, for the steps first, first + 1, ...; `columns` has the values of
        each name, [steps]."""
        self._each(lambda file: file.steps(first, columns))

    def image(self, step: int, tag: str, images: Any) -> None:
        """Writes an image [h, w, c], or the first 16 of [n, h, w, c]: uint8, or floats in 0..1; c
        is 1, 3 or 4.

        Raises OptionError, which names the tag, for any other shape, dtype or range."""
        self._add(step, image_summary, tag, images)

    def histogram(self, step: int, tag: str, values: Any) -> None:
        """Writes the distribution of the finite values, an array of any shape, in 30 buckets."""
        self._add(step, histogram_summary, tag, values)

    def text(self, step: int, tag: str, text: str) -> None:
        """Writes a text, which TensorBoard renders as Markdown."""
        self._add(step, text_summary, tag, text)

    def _add(
        self, step: int, summary_of: Callable[[str, Any], Summary], tag: str, value: Any
    ) -> None:
        if self.writes:
            with self._naming():
                self._events.add(step, summary_of(tag, value))

    def flush(self, now: bool = False) -> None:
        """Makes the points visible to readers; in a bucket only at intervals, unless `now`."""
        self._each(lambda file: file.flush(now))

    def _each(self, write: Callable[[EventWriter | MetricsFile], None]) -> None:
        if self.writes:
            with self._naming():
                write(self._events)
                write(self._lines)

    def __enter__(self) -> "Reports":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        files = (self._events, self._lines) if self.writes else ()
        self.writes = False
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
