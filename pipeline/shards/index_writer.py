"""Writes the index of a split, shard by shard: nobody holds the rows of all records.

Conversions and infeed index use it."""

from collections.abc import Iterable
from io import BytesIO

import google_crc32c
import numpy as np

from pipeline.shards.naming import index_file, parts_file
from pipeline.shards.split_index import INDEX_ROW_BYTES, WHOLE_BYTES, Parts, part_columns
from pipeline.shards.typed_json import sealed_line
from pipeline.storage.storage import Storage, join


def index_header(num_records: int) -> bytes:
    """The first 128 bytes of an index file, which is a .npy file (format 1.0) of uint32 [N, 2]:
    length and crc32c. The rows follow, in shard order."""
    header = BytesIO()
    array = {"descr": "<u4", "fortran_order": False, "shape": (num_records, 2)}
    np.lib.format.write_array_header_1_0(header, array)
    return header.getvalue()


def write_index(
    storage: Storage, directory: str, split: str, num_records: int, shards: Iterable[np.ndarray]
) -> int:
    """Publishes the index of a split, and its parts if it is large. Returns the crc32c of the
    index.

    shards: the rows of each shard in order, uint32 [n, 2]; num_records in total."""
    header = index_header(num_records)
    checksum = google_crc32c.Checksum(header)
    written = 0
    columns = [np.zeros((3, 0), np.int64)]
    with storage.publish(join(directory, index_file(split))) as sink:
        sink.write(header)
        for shard in shards:
            rows = np.ascontiguousarray(shard, "<u4")
            checksum.update(rows.tobytes())
            sink.write(rows.tobytes())
            columns.append(part_columns(rows))
            written += len(rows)
        assert written == num_records
    crc = int.from_bytes(checksum.digest(), "big")
    if len(header) + INDEX_ROW_BYTES * num_records > WHOLE_BYTES:
        parts = Parts(crc, *map(tuple, np.concatenate(columns, axis=1).tolist()))
        with storage.publish(join(directory, parts_file(split))) as sink:
            sink.write(sealed_line(vars(parts)))
    return crc
