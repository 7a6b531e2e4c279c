"""The file names of images, for lists of predictions: strings cannot be part of a batch on a device."""

import numpy as np

from pipeline.shards.example_decoding import decode_features
from pipeline.shards.schema import Schema
from pipeline.sources.indexed_records import FILE_NAME_KEYS
from pipeline.sources.records import Proven, Record, Records, fetch

__all__ = ["FileNames", "file_name_key"]

BLOCK_BYTES = 16 << 20


def file_name_key(schema: Schema) -> str | None:
    """The feature that holds the name of an image's file; None if there is none."""
    features = schema.features
    return next((key for key in FILE_NAME_KEYS if key in features and features[key].dtype == "bytes"), None)


class FileNames:
    """The file names of these records, for numbers that ascend: reads the records once more, in large blocks."""

    def __init__(self, records: Records, key: str) -> None:
        self._records, self._key = records, key.encode()
        mean = records.info.num_bytes // records.info.num_records + 1
        self._block_records = max(1, min(BLOCK_BYTES // mean, 1024))
        self._start, self._block = 0, list[Record]()

    def __getitem__(self, number: int) -> str | None:
        """The file name of a record; None if the record has none or is damaged."""
        if not 0 <= number - self._start < len(self._block):
            end = min(number + self._block_records, self._records.info.num_records)
            self._start, self._block = number, fetch(self._records, np.arange(number, end))
        record = self._block[number - self._start]
        if not isinstance(record, Proven):
            return None
        names = decode_features(record.payload, [self._key]).get(self._key.decode(), ())
        return names[0].decode(errors="surrogateescape") if len(names) == 1 else None
