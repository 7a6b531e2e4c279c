"""What an input states about its batches before any is made, and a dataset that has no batch size
yet. The trainer, and inputs of a user's own, start here.

The quarantine of a DatasetInput lists which records are damaged or cannot be decoded, and limits
how many. NumPy only."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import wraps
from inspect import signature
from os import PathLike, fspath
from typing import Any, Literal, NoReturn, ParamSpec, TypeVar, cast, get_args

from pipeline.checks import check_choice, check_number
from pipeline.description import Description
from pipeline.errors import BadRecordsError, OptionError, StorageError
from pipeline.logs import log
from pipeline.shards.typed_json import JsonFile
from pipeline.storage.schemes import open_storage

NO_BATCH = (
    "this {} has no batch size. Give it one, such as global_batch=64, or give it to a Trainer, "
    "which has one."
)
D = TypeVar("D")
P = ParamSpec("P")
MAX_BAD_RECORDS = 100
NAMED = 3
OnError = Literal["raise", "skip", "mask"]


@dataclass(frozen=True, eq=False)
class InputInfo:
    """What is known of an input before its first batch.

    spec: key -> object with .shape (host batch first, unless TrainerConfig.batch_axis names another
        axis) and .dtype; `_mask` float32 [b], `_index` int32 [b] (-1 on padding) and `_crc` uint32
        [b] (0 on padding) are part of it, in training also `_seed` uint32 [b, 2] (different for
        each record and epoch, 0 on padding), from which Task.augment draws.
    fingerprint: identifies the data.
    start: the position of the first batch.
    num_records: of one epoch, over all hosts.
    steps_per_epoch: batches of one.
    expected_crc: the sum of the crcs of the records due in one exact epoch, over all hosts, modulo
        2**32. None where these are not known, as for the checksums of training, which drops a tail.
    global_batch: rows of a batch, over all hosts; None if the input does not know.
    endless: whether the batches never end.
    program: what hosts have in common whose batches another library makes; None: they are infeed's.
        "complete": every host runs the same program completely, and they compare what they deliver.
        "rows": each makes its rows of the same batches. "own": each has records of its own; of an
        epoch they are `host_records`, and the hosts agree on num_records and steps_per_epoch.
    on_error: "raise", "mask" or "skip"; only with "mask" may an evaluation mask rows of records
        that are due.
    quarantine: the bad records that this host has met so far, a sequence that grows.
    verify_command: the command that lists damaged records; None if there is none.
    totals: sums over all records due that the dataset states, such as num_bytes of text; an
        evaluation compares what metrics add up under these names.
    provenance: how the batches came about, as JSON, from which `infeed seen` names the records of
        any step; None if that is not known.
    name: of the data, for messages.
    description: what gives the numbers in the batches their meaning; None if that is not known."""

    spec: Mapping[str, Any]
    fingerprint: str
    start: Any = None
    num_records: int | None = None
    steps_per_epoch: int | None = None
    expected_crc: int | None = None
    global_batch: int | None = None
    endless: bool = False
    program: Literal["complete", "rows", "own"] | None = None
    host_records: int | None = None
    on_error: str = "raise"
    quarantine: Sequence[Any] = ()
    verify_command: str | None = None
    totals: Mapping[str, int] = field(default_factory=dict)
    provenance: Mapping[str, Any] | None = None
    description: Description | None = None
    name: str | None = None


class Unbatched:
    """A dataset without a batch size: a Trainer calls it with its InputContext, which has that and
    the hosts' shares.

    The context also decides the seed and how records are read, unless that was given."""

    def __init__(
        self, make: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        # TypeError for an unknown option, here rather than in the Trainer
        signature(make).bind(*args, **options)
        self._make = make
        self._args = args
        self._options = options

    def __call__(self, ctx: Any) -> Any:
        """The batches of the context's host."""
        from_context = {
            "hosts": ctx.hosts,
            "seed": ctx.seed,
            "stall_seconds": ctx.stall_seconds,
            "workers": ctx.workers,
            **ctx.reading,
        }
        taken = {
            name: from_context[name]
            for name in from_context.keys() & signature(self._make).parameters
        }
        masks = {"on_error": "mask", "max_bad_records": ctx.max_masked} if ctx.max_masked else {}
        return self._make(
            *self._args, **taken | self._options | masks, global_batch=ctx.global_batch_size
        )

    def __iter__(self) -> NoReturn:
        raise OptionError(NO_BATCH.format(self._make.__name__))

    def __getattr__(
        self, name: str
    ) -> NoReturn:  # of a DatasetInput; copy and pickle ask for names with underscores
        raise AttributeError(
            name if name.startswith("_") else f"{name}: {NO_BATCH.format(self._make.__name__)}"
        )


def without_batch(make: Callable[P, D]) -> Callable[P, D]:
    """The function, which returns an Unbatched unless it is given a global_batch."""

    @wraps(make)
    def dataset(*args: P.args, **options: P.kwargs) -> D:
        if options.get("global_batch") is None:
            options.pop("global_batch", None)
            return cast(D, Unbatched(make, args, options))
        return make(*args, **options)

    return dataset


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

    on_error: what to do about them. quarantine_file: a path or gs:// that also lists them, as
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
