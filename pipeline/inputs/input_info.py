"""What an input states about its batches before any is made. The trainer, and inputs of a user's
own, start here. NumPy only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pipeline.description import Description
from pipeline.sources.records import RecordsInfo
from pipeline.spec import CRC


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
    copies: of an epoch's records, how many are also in each other split, by split; None if that is
        not known.
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
    copies: Mapping[str, int] | None = None
    name: str | None = None


def proven_by(info: InputInfo, records: RecordsInfo) -> InputInfo:
    """The info of an epoch whose examples are these records. Raises as check_numbers."""
    records.check_numbers()
    return replace(
        info,
        num_records=records.num_records,
        expected_crc=records.crc_sum if CRC in info.spec else None,
        verify_command=records.verify_command,
        totals=records.totals,
        description=records.description,
        copies=records.copies,
        name=records.name,
    )
