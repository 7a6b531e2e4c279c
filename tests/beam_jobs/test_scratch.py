"""Compressed raw files: the temporary file is that of the content, bounded, and gone however the command ends."""

import gzip
import os
import signal
import subprocess
import sys
import zlib

import pytest

from beam_jobs.scratch import Scratch
from converters import idx_to_gcs
from pipeline.errors import ConversionError, InfeedError, RawDataError
from pipeline.storage.local import LocalStorage

STORAGE = LocalStorage()
MB, GIB = 10**6, 1 << 30


def left(out):
    return [str(path) for path in out.glob("_scratch/*")] + [
        str(path) for path in out.glob("_scratch/.*")
    ]


@pytest.mark.parametrize(
    ("compression", "compress"),
    [("gzip", lambda data: gzip.compress(data, 0)), ("zlib", lambda d: zlib.compress(d, 0))],
)
def test_a_repaired_file_of_the_same_size_is_uncompressed_anew(tmp_path, compression, compress):
    raw, made, scratch = tmp_path / "raw", [], Scratch(str(tmp_path / "out"))
    for content in (b"damaged" * 1000, b"mended!" * 1000):
        raw.write_bytes(compress(content))
        path = scratch.uncompressed(STORAGE, str(raw), compression)
        assert STORAGE.read(path) == content
        made.append((path, raw.stat().st_size))
        assert scratch.uncompressed(STORAGE, str(raw), compression) == path
    assert made[0][0] != made[1][0]
    assert made[0][1] == made[1][1]
    assert set(scratch.paths) == {path for path, _ in made}


@pytest.mark.parametrize("size", [0, GIB // 100, GIB, 1 << 45])
def test_the_default_limit_of_uncompressed_bytes_is_a_hundred_times_the_size_or_a_gigabyte(size):
    assert Scratch("out").limit(size) == max(GIB, 100 * size)
    assert Scratch("out", 7).limit(size) == 7


@pytest.mark.parametrize("most", [8 * MB, 8 * MB - 1])
def test_a_file_is_uncompressed_up_to_the_bound_and_not_a_byte_further(tmp_path, most):
    (tmp_path / "raw.gz").write_bytes(gzip.compress(bytes(8 * MB)))
    scratch = Scratch(str(tmp_path / "out"), most)
    if most == 8 * MB:
        assert (
            STORAGE.stat(scratch.uncompressed(STORAGE, str(tmp_path / "raw.gz"), "gzip")).bytes
            == most
        )
        return
    message = r"raw.gz has 7.8 KB and uncompresses to more than 8 MB: .* bomb.* --max-uncompressed-bytes=SIZE"
    with pytest.raises(RawDataError, match=message):
        scratch.uncompressed(STORAGE, str(tmp_path / "raw.gz"), "gzip")
    assert left(tmp_path / "out") == []


class Counting(LocalStorage):
    """A disk that counts what is read front to back."""

    taken = 0

    def open(self, path):
        file = super().open(path)
        read = file.read
        file.read = lambda size: (
            data := read(size),
            setattr(self, "taken", self.taken + len(data)),
        )[0]
        return file


def test_a_bomb_is_stopped_while_it_grows(tmp_path):
    (tmp_path / "raw.gz").write_bytes(gzip.compress(bytes(16 * MB), 0))
    raw = Counting()
    with pytest.raises(RawDataError, match="more than 2 MB"):
        Scratch(str(tmp_path / "out"), 2 * MB).uncompressed(raw, str(tmp_path / "raw.gz"), "gzip")
    assert 2 * MB < raw.taken < 4 * MB


def convert_idx(directory, out, *flags):
    return idx_to_gcs.main([f"--raw-data-dir={directory}", f"--gcs-output-path={out}", *flags])


def test_the_option_bounds_what_a_command_uncompresses(raw_mnist, tmp_path):
    with pytest.raises(
        RawDataError, match=r"images-idx3-ubyte.gz has .* uncompresses to more than 100 B"
    ):
        convert_idx(raw_mnist.write().directory, tmp_path / "out", "--max-uncompressed-bytes=100")
    assert left(tmp_path / "out") == []


@pytest.mark.usefixtures("without_beam")
def test_a_failed_conversion_leaves_no_uncompressed_files(raw_mnist, tmp_path):
    with pytest.raises(InfeedError, match="target-shard-bytes=1 "):
        convert_idx(raw_mnist.write().directory, tmp_path / "out", "--target-shard-bytes=1")
    assert (tmp_path / "out/_scratch").exists()
    assert left(tmp_path / "out") == []


def test_a_job_that_a_service_runs_keeps_its_files(tmp_path):
    (tmp_path / "raw.gz").write_bytes(gzip.compress(b"content"))
    for kept in (False, True):  # in that order: one that is found is another command's
        with pytest.raises(ConversionError), Scratch(str(tmp_path / "out")) as scratch:
            path = scratch.uncompressed(STORAGE, str(tmp_path / "raw.gz"), "gzip")
            if kept:
                scratch.keep()
            raise ConversionError("the launcher lost the service")
        assert STORAGE.exists(path) == kept


WAITING = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever is started in the background ignores it
from beam_jobs import scratch
from pipeline.storage.local import LocalStorage
raw, out, moment = sys.argv[1:]
whole = scratch.read_compressed
def slow(*args):
    yield from whole(*args)
    if moment == "growing":
        print("there", flush=True)
        while not time.sleep(0.01):
            yield b"more"
scratch.read_compressed = slow
with scratch.Scratch(out) as files:
    if moment != "nothing":
        files.uncompressed(LocalStorage(), raw, "gzip")
    try:
        print("there", flush=True)
        for _ in range(3000):  # not one sleep: a signal just before it would be handled after it
            time.sleep(0.01)
    except BaseException as e:
        raise RuntimeError("while running 'gather'") from e  # as Beam does
"""


@pytest.mark.parametrize(
    ("number", "moment"),
    [(signal.SIGINT, "growing"), (signal.SIGTERM, "whole"), (signal.SIGTERM, "nothing")],
)
def test_ctrl_c_and_sigterm_remove_uncompressed_files_and_end_the_process_by_the_signal(
    tmp_path, number, moment
):
    (tmp_path / "raw.gz").write_bytes(gzip.compress(bytes(1000)))
    command = [
        sys.executable,
        "-c",
        WAITING,
        str(tmp_path / "raw.gz"),
        str(tmp_path / "out"),
        moment,
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"there\n"
        assert bool(left(tmp_path / "out")) == (moment != "nothing")
        process.send_signal(number)
        process.communicate(timeout=30)
    assert process.returncode == -number
    assert left(tmp_path / "out") == []
