"""What the converters' tests share: a table to fill, and a CIFAR."""

import pytest
from raw_data.pixels import RawCifar


@pytest.fixture
def table(tmp_path):
    """table("train.csv", text): written into the raw directory."""

    def write(name, text):
        (tmp_path / "raw").mkdir(exist_ok=True)
        (tmp_path / "raw" / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    return write


@pytest.fixture(params=[False, True], ids=["cifar-10", "cifar-100"])
def raw_cifar(request, tmp_path):
    """A small CIFAR of either kind, not written yet, so that the test may change its `batches` and `names`."""
    return RawCifar(tmp_path / "raw", request.param)


@pytest.fixture
def raw(tmp_path):
    """An empty directory for raw data."""
    (tmp_path / "raw").mkdir()
    return tmp_path / "raw"


@pytest.fixture
def out(tmp_path):
    """Where a conversion writes."""
    return tmp_path / "out"
