"""A machine that fails: each fault is one clear error, leaves no manifest, and the rerun works."""

import functools
import os
import subprocess

import pytest
from stages import without_beam

from beam_jobs import stages
from converters import imagenet_to_gcs
from pipeline.errors import ConversionError
from pipeline.shards.manifest import read_manifest


def command(raw, out, *flags):
    base = ["-m", "converters.imagenet_to_gcs", f"--raw-data-dir={raw}", f"--gcs-output-path={out}"]
    return [
        *base,
        f"--label-file={raw}/synsets.txt",
        "--splits=train",
        "--target-shard-bytes=250KB",
        *flags,
    ]


# Root may write anywhere: the process gives up all capabilities, so that the test is one for root too.
WEAK = """
import ctypes
header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert ctypes.CDLL(None, use_errno=True).capset(header, data) == 0
"""
CONVERT = """
from beam_jobs.launch import exit_with
from converters.imagenet_to_gcs import main
exit_with(main)
"""


def go_on(raw, out):
    """The same command again, in this process and without Beam: what counts is what it finds."""
    with without_beam():
        imagenet_to_gcs.main(command(raw, out)[2:])
    assert read_manifest(str(out)).split("train").num_records == 1429


@pytest.fixture
def run(run_forked):
    """run(command): (exit status, output)."""

    def ran(command):
        status, output = run_forked(command, timeout=120)
        assert "Traceback" not in output
        return status, output

    return ran


@pytest.fixture
def small_disk(tmp_path):
    """A disk of its own with room for half of the shards, and a function that makes it larger."""
    mount = tmp_path / "disk"
    mount.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=900k", "tmpfs", mount], check=True)
    yield mount, lambda: subprocess.run(["mount", "-o", "remount,size=64m", mount], check=True)
    subprocess.run(["umount", mount], check=True)


@pytest.mark.slow
def test_a_full_disk_is_named_and_with_more_room_the_same_command_goes_on(run, digits, small_disk):
    mount, enlarge = small_disk
    flags = (digits[0], mount / "out", "--local-processes=2")
    status, output = run(command(*flags))
    assert status == 2
    assert "error: cannot write" in output
    assert "No space left on device" in output
    assert not (mount / "out/manifest.json").exists()
    assert not list((mount / "out").rglob("*.tmp"))
    kept = {path.name: path.stat().st_ino for path in (mount / "out/_shards").glob("train-*.json")}
    enlarge()
    go_on(*flags[:2])
    assert {name: (mount / f"out/_shards/{name}").stat().st_ino for name in kept} == kept


@pytest.mark.slow
def test_a_directory_without_permission_is_named(run, digits, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o555)
    status, output = run(["-c", WEAK + CONVERT, *command(digits[0], out)[2:]])
    assert (status, output.count("Permission denied")) == (2, 1)
    assert f"error: cannot create {out}/_shards/train.plan.json: Permission denied" in output
    out.chmod(0o755)
    go_on(digits[0], out)


LOSSY = {
    "an input": ([2], r"input .*\(n00000003\) arrived 0 times"),
    "all inputs": ([0, 1, 2], r"the commit of train never ran: it lost data"),
}


@pytest.mark.parametrize("loss", LOSSY)
def test_a_runner_that_loses_inputs_and_reports_success_is_found_out(
    raw_imagenet, tmp_path, monkeypatch, loss
):
    lost, message = LOSSY[loss]
    scan = stages.scan

    @functools.wraps(scan)
    def lossy(number, stored):
        return [] if number in lost else [*scan(number, stored)]

    monkeypatch.setattr(stages, "scan", lossy)
    with pytest.raises(ConversionError, match=message):
        raw_imagenet.convert(tmp_path / "out", "--splits=train")
    assert not (tmp_path / "out/manifest.json").exists()
    monkeypatch.undo()
    with without_beam():
        raw_imagenet.convert(tmp_path / "out", "--splits=train")
    assert read_manifest(str(tmp_path / "out")).split("train").num_records == 18
