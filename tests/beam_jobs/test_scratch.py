"""Compressed raw files: the temporary file is that of the content, not of a name."""

import gzip
import zlib

import pytest

from beam_jobs.scratch import uncompressed
from pipeline.shards.local import LocalStorage

STORAGE = LocalStorage()


@pytest.mark.parametrize(
    ("compression", "compress"),
    [("gzip", lambda data: gzip.compress(data, 0)), ("zlib", lambda d: zlib.compress(d, 0))],
)
def test_a_repaired_file_of_the_same_size_is_uncompressed_anew(tmp_path, compression, compress):
    raw, made = tmp_path / "raw", []
    for content in (b"damaged" * 1000, b"mended!" * 1000):
        raw.write_bytes(compress(content))
        path = uncompressed(STORAGE, str(raw), STORAGE, str(tmp_path / "out"), compression)
        assert STORAGE.read(path) == content
        made.append((path, raw.stat().st_size))
        assert uncompressed(STORAGE, str(raw), STORAGE, str(tmp_path / "out"), compression) == path
    assert made[0][0] != made[1][0]
    assert made[0][1] == made[1][1]
