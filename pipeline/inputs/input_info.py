"""What an input states about its batches before any is made, and a dataset that has no batch size yet. The trainer, and
inputs of a user's own, start here.

NumPy only."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

from pipeline.description import Description
from pipeline.errors import OptionError

NO_BATCH = "this {} has no batch size. Give it one, such as global_batch=64, or give it to a Trainer, which has one."

D = TypeVar("D")
P = ParamSpec("P")


@dataclass(frozen=True, eq=False)
class InputInfo:
    """What is known of an input before its first batch.

    spec: key -> object with .shape (host batch first, unless TrainerConfig.batch_axis names another axis) and .dtype;
    `_mask` float32 [b], `_index` int32 [b] (-1 on padding) and `_crc` uint32 [b] (0 on padding) are part of it, in
    training also `_seed` uint32 [b, 2] (different for each record and epoch, 0 on padding), from which Task.augment
    draws. fingerprint: identifies the data. start: the position of the first batch.
    num_records: of one epoch, over all hosts. steps_per_epoch: batches of one. expected_crc: the sum of the crcs of the
    records due in one exact epoch, over all hosts, modulo 2**32. None where these are not known, as for the checksums
    of training, which drops a tail. global_batch: rows of a batch, over all hosts; None if the input does not know.
    endless: whether the batches never end. is_program: whether it is a program that every host runs completely, from
    its beginning, to resume: hosts then compare what they deliver.
    on_error: "raise", "mask" or "skip"; only with "mask" may an evaluation mask rows of records that are due.
    quarantine: the bad records that this host has met so far, a sequence that grows. verify_command: the command that
    lists damaged records; None if there is none. totals: sums over all records due that the dataset states, such as
    num_bytes of text; an evaluation compares what metrics add up under these names. provenance: how the batches came
    about, as JSON, from which `infeed seen` names the records of any step; None if that is not known.
    name: of the data, for messages. description: what gives the numbers in the batches their meaning; None if that is
    not known."""

    spec: Mapping[str, Any]
    fingerprint: str
    start: Any = None
    num_records: int | None = None
    steps_per_epoch: int | None = None
    expected_crc: int | None = None
    global_batch: int | None = None
    endless: bool = False
    is_program: bool = False
    on_error: str = "raise"
    quarantine: Sequence[Any] = ()
    verify_command: str | None = None
    totals: Mapping[str, int] = field(default_factory=dict)
    provenance: Mapping[str, Any] | None = None
    description: Description | None = None
    name: str | None = None


class Unbatched:
    """A dataset without a batch size: a Trainer calls it with its InputContext, which has that and the hosts' shares.

    The context also decides the seed and how records are read, unless that was given."""

    def __init__(self, make: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> None:
        signature(make).bind(*args, **options)  # TypeError for an unknown option, here rather than in the Trainer
        self._make, self._args, self._options = make, args, options

    def __call__(self, ctx: Any) -> Any:
        """The batches of the context's host."""
        told = {"hosts": ctx.hosts, "seed": ctx.seed, "stall_seconds": ctx.stall_seconds, "workers": ctx.workers}
        told |= ctx.reading
        taken = {name: told[name] for name in told.keys() & signature(self._make).parameters}
        masks = {"on_error": "mask", "max_bad_records": ctx.max_masked} if ctx.max_masked else {}
        return self._make(*self._args, **taken | self._options | masks, global_batch=ctx.global_batch_size)

    def __iter__(self) -> NoReturn:
        raise OptionError(NO_BATCH.format(self._make.__name__))

    def __getattr__(self, name: str) -> NoReturn:  # of a DatasetInput; copy and pickle ask for names with underscores
        raise AttributeError(name if name.startswith("_") else f"{name}: {NO_BATCH.format(self._make.__name__)}")


def without_batch(make: Callable[P, D]) -> Callable[P, D]:
    """The function, which returns an Unbatched unless it is given a global_batch."""

    @wraps(make)
    def dataset(*args: P.args, **options: P.kwargs) -> D:
        if options.get("global_batch") is None:
            options.pop("global_batch", None)
            return cast(D, Unbatched(make, args, options))
        return make(*args, **options)

    return dataset
