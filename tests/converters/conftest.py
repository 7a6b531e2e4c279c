"""What the converters' tests share: a table to fill."""

import pytest


@pytest.fixture
def table(tmp_path):
    """table("train.csv", text): written into the raw directory."""

    def write(name, text):
        (tmp_path / "raw").mkdir(exist_ok=True)
        (tmp_path / "raw" / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    return write
