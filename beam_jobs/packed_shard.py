"""The rows of one shard that are in packed files."""

import json
from collections.abc import Iterator, Sequence

import numpy as np

from beam_jobs.converter import ConversionJob, Source
from beam_jobs.ledger import Rejected
from beam_jobs.packed_rows import PackedFile, PackedRecords, PackedRows, joined
from beam_jobs.plan import SplitPlan
from beam_jobs.raw_rows import Shard
from beam_jobs.references import DUPLICATE, decoded, escaped


class PackedShard(Shard):
    """All rows of a shard that are in packed files. See RawShard, which is alike."""

    def __init__(self, plan: SplitPlan, pieces: Sequence[PackedRows]) -> None:
        """pieces: of each bucket, in order."""
        self._packed = joined(sorted(pieces, key=lambda piece: piece.rows["rank"][0]))
        super().__init__(plan, self._packed)

    def crcs(self) -> Iterator[int]:
        """The checksum of each record that is written. Reads all."""
        for records in self.records():
            yield from records.trailers["crc32c"].tolist()

    def name_of(self, row: int) -> str:
        """The name of the source that a row is from."""
        file = self._packed.files[self._packed.rows["file"][row]]
        return source_of(self._plan.job, file).name

    def rejected(self) -> Iterator[Rejected]:
        """The entries of rejected rows, in order. Reads each of them."""
        for row in np.flatnonzero(~self.good).tolist():
            one = self._packed.take([row])
            (key,), (payload,), (trailer,) = one.alone()
            repeat = one.files[one.rows["file"][0]].place[0], DUPLICATE
            uri, error = repeat if one.rows["size"][0] else json.loads(payload)
            name, offset = escaped(decoded(key)), int(trailer["offset"])
            yield Rejected(name, escaped(uri), offset, "scan", error)

    def records(self) -> Iterator[PackedRecords]:
        """The records that are written, in order. Raises RawDataError if one is damaged."""
        return self._packed.records()


def source_of(job: ConversionJob, file: PackedFile) -> Source:
    """The source that a packed file was made of."""
    place = file.place[:2]
    return next(each for each in job.sources if (each.uri, each.offset) == place)
