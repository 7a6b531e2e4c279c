"""TFRecord files to convert."""

import pytest
from tfrecord_numbers import payload, write


@pytest.fixture
def raw(tmp_path):
    """20 numbers in two files of train."""
    for file in range(2):
        write(
            tmp_path / f"raw/train-{file:05d}-of-00002",
            map(payload, range(10 * file, 10 * file + 10)),
        )
    return tmp_path / "raw"
