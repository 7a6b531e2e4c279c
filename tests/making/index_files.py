"""The bytes of an index file, of the rows of all records."""

import numpy as np

from pipeline.shards.index_writer import index_header


def encode_index(rows: np.ndarray) -> bytes:
    """An index file. rows: [N, 2], length and crc32c."""
    return index_header(len(rows)) + np.asarray(rows, "<u4").tobytes()
