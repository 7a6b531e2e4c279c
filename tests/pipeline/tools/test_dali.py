"""DALI's index: what its own tool would write."""

import os
import shutil
import struct
from pathlib import Path

import pytest


@pytest.fixture
def directory(numbers_of, tmp_path) -> Path:
    """A copy to write into."""
    return Path(shutil.copytree(numbers_of(5, 0, 7, 1), tmp_path / "data"))


def offsets_and_sizes(data: bytes) -> list[str]:
    """What DALI's tfrecord2idx writes of a file: it goes from header to header."""
    lines, at = [], 0
    while at < len(data):
        size = 8 + 4 + struct.unpack_from("<q", data, at)[0] + 4
        lines.append(f"{at} {size}\n")
        at += size
    return lines


@pytest.mark.parametrize("where", [(), ("elsewhere",)])
def test_dalis_index_has_offset_and_size_of_every_record(directory, verify, tmp_path, where):
    where = [str(tmp_path / name) for name in where]
    os.truncate(directory / "validation-00000-of-00004", 14)
    _, printed, _ = verify(directory, "--dali-index", *where)
    index = Path(*where) if where else directory / "_dali"
    assert sorted(file.name for file in index.iterdir()) == [f"train-0000{i}-of-00004.idx" for i in range(4)]
    for file in index.iterdir():
        shard = (directory / file.stem).read_bytes()
        assert file.read_text() == "".join(offsets_and_sizes(shard))
    assert "validation: no DALI index, because the split is damaged." in printed
    assert len(list(directory.glob("train*"))) == 4  # what readers glob
