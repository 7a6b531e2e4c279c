"""Two conversions into one directory at once, on a disk: both end well, with the bytes that one of them gives."""

import pytest


def command(raw, out, *more):
    flags = (f"--raw_data_dir={raw}", f"--gcs_output_path={out}", f"--label_file={raw}/synsets.txt", *more)
    return ["-m", "converters.imagenet_to_gcs", "--target_shard_bytes=100KB", *flags]


@pytest.fixture
def at_once(fork_server, tmp_path):
    """at_once(command, command): (exit status, output) of each."""

    def run(*commands):
        printed = [tmp_path / f"printed-{number}" for number in range(len(commands))]
        running = [fork_server.start(command, out) for command, out in zip(commands, printed, strict=True)]
        return [(process.wait(120)[0], out.read_text()) for process, out in zip(running, printed, strict=True)]

    return run


def test_two_conversions_of_the_same_data_at_once_both_succeed(at_once, digits, tmp_path, shard_digests):
    raw, out = digits
    for status, output in at_once(*[command(raw, tmp_path / "out")] * 2):
        assert status == 0, output
        assert "train: 1,429 records" in output
    assert shard_digests(tmp_path / "out") == shard_digests(out)
    assert not list((tmp_path / "out").rglob("*.tmp"))


def test_conversions_of_two_splits_at_once_are_both_in_the_manifest(at_once, digits, tmp_path, shard_digests):
    raw, out = digits
    commands = [command(raw, tmp_path / "out", f"--splits={split}") for split in ("train", "validation")]
    for status, output in at_once(*commands):
        assert status == 0, output
    assert shard_digests(tmp_path / "out") == shard_digests(out)
