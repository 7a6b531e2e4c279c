"""Records of a few examples in memory, with a schema and class names like a converted split. NumPy only."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b

import numpy as np

from pipeline.errors import EmptySplitError
from pipeline.shards.example import Value, encode_example
from pipeline.shards.record import crc32c
from pipeline.shards.schema import Labels, Schema
from pipeline.sources.records import RECORD_OBJECT_BYTES, Group, Proven, ReadWhenDue, Record, RecordsInfo


class ExampleRecords:
    """Example i as record i, encoded with this schema as a conversion would: see Records.

    For data that a program generates: there is no file to check, so checksums only prove that each record was delivered
    once. Raises EmptySplitError without examples, and SchemaError for one that does not match the schema."""

    def __init__(
        self,
        name: str,
        schema: Schema,
        examples: Iterable[Mapping[str, Value]],
        labels: Labels | None = None,
        totals: Mapping[str, int] | None = None,
    ) -> None:
        self._payloads = [encode_example(schema, example) for example in examples]
        if not self._payloads:
            raise EmptySplitError(f"{name} has no records, so there is nothing to read.")
        self._lengths = np.array([len(payload) for payload in self._payloads], np.uint32)
        self._crcs = np.array([crc32c(payload) for payload in self._payloads], np.uint32)
        self.info = RecordsInfo(
            name=name,
            fingerprint=blake2b(b"".join(self._payloads), digest_size=16).hexdigest(),
            num_records=len(self._payloads),
            num_bytes=int(self._lengths.sum()),
            layout=schema,
            labels=labels,
            crcs=self._crcs,
            lengths=self._lengths,
            totals=totals or {},
        )

    def block_starts(self, block_records: int) -> np.ndarray:
        """See Records: every record is equally cheap to read."""
        return np.arange(0, len(self._payloads), block_records)

    def weigh(self, record_ids: np.ndarray) -> int:
        return int(self._lengths[record_ids].sum()) + len(record_ids) * RECORD_OBJECT_BYTES

    def read(self, groups: Iterable[Group], ahead_bytes: int = 0) -> ReadWhenDue:
        """See Records."""
        del ahead_bytes  # everything is in memory
        return ReadWhenDue(self._proven, groups)

    def _proven(self, record_ids: np.ndarray) -> list[Record]:
        """These records."""
        crcs = self._crcs[record_ids].tolist()
        return [Proven(self._payloads[number], crc) for number, crc in zip(record_ids.tolist(), crcs, strict=True)]

    def where(self, record_id: int) -> str:
        return f"{self.info.name}, record {record_id}"
