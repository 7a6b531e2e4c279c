"""Two conversions into one directory at once, on a disk: both end well, with the bytes that one of them gives."""

import subprocess
import sys


def command(raw, out, *more):
    flags = (f"--raw_data_dir={raw}", f"--gcs_output_path={out}", f"--label_file={raw}/synsets.txt", *more)
    return [sys.executable, "-m", "converters.imagenet_to_gcs", "--target_shard_bytes=100KB", *flags]


def at_once(*commands):
    """(exit status, output) of each."""
    running = [subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for c in commands]
    return [(process.communicate(timeout=120)[0], process.returncode)[::-1] for process in running]


def test_two_conversions_of_the_same_data_at_once_both_succeed(digits, tmp_path, shard_digests):
    raw, out = digits
    for status, output in at_once(*[command(raw, tmp_path / "out")] * 2):
        assert status == 0, output
        assert "train: 1,429 records" in output
    assert shard_digests(tmp_path / "out") == shard_digests(out)
    assert not list((tmp_path / "out").rglob("*.tmp"))


def test_conversions_of_two_splits_at_once_are_both_in_the_manifest(digits, tmp_path, shard_digests):
    raw, out = digits
    commands = [command(raw, tmp_path / "out", f"--splits={split}") for split in ("train", "validation")]
    for status, output in at_once(*commands):
        assert status == 0, output
    assert shard_digests(tmp_path / "out") == shard_digests(out)
