"""A named pipe where a file of a checkpoint is expected: opening it would wait for a writer that never comes."""

import os

import pytest

from pipeline.errors import StorageError
from trainer.warm_start.finding import find_checkpoint

ORBAX = {"_METADATA": b"{}", "d/": None, "d/one": b"1"}
FORMATS = {
    "model.safetensors": {"model.safetensors": b"1"},
    "several": {"several/": None, "several/a.safetensors": b"1", "several/b.safetensors": b"1"},
    "ckpt-1": {"ckpt-1.index": b"1", "ckpt-1.data-00000-of-00001": b"1"},
    "orbax": {"orbax/": None, **{f"orbax/{name}": data for name, data in ORBAX.items()}},
}
CASES = [(given, name) for given, files in FORMATS.items() for name, data in files.items() if data is not None]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("given", "pipe"), CASES)
def test_init_from_refuses_a_named_pipe_by_its_name(tmp_path, given, pipe):
    for name, data in FORMATS[given].items():
        if data is None:
            (tmp_path / name).mkdir()
        elif name == pipe:
            os.mkfifo(tmp_path / name)
        else:
            (tmp_path / name).write_bytes(data)
    with pytest.raises(StorageError, match=rf"{pipe} is a directory or a device, not a file\."):
        find_checkpoint(str(tmp_path / given))
