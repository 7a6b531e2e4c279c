"""Two conversions into one directory at once, on a disk: both end well, with the bytes that one of them gives."""

import pytest
from stages import Stages

from beam_jobs import graph
from beam_jobs.graph import Flow
from pipeline.commands import verify
from pipeline.errors import InfeedError


def command(raw, out, *more):
    flags = (
        f"--raw-data-dir={raw}",
        f"--gcs-output-path={out}",
        f"--label-file={raw}/synsets.txt",
        *more,
    )
    return ["-m", "converters.imagenet_to_gcs", "--target-shard-bytes=100KB", *flags]


@pytest.fixture
def at_once(fork_server, tmp_path):
    """at_once(command, command): (exit status, output) of each."""

    def run(*commands):
        printed = [tmp_path / f"printed-{number}" for number in range(len(commands))]
        running = [
            fork_server.start(command, out) for command, out in zip(commands, printed, strict=True)
        ]
        return [
            (process.wait(120)[0], out.read_text())
            for process, out in zip(running, printed, strict=True)
        ]

    return run


@pytest.mark.slow
def test_two_conversions_of_the_same_data_at_once_both_succeed(
    at_once, digits, tmp_path, shard_digests
):
    raw, out = digits
    for status, output in at_once(*[command(raw, tmp_path / "out")] * 2):
        assert status == 0, output
        assert "train: 1,429 records" in output
    assert shard_digests(tmp_path / "out") == shard_digests(out)
    assert not list((tmp_path / "out").rglob("*.tmp"))


@pytest.mark.slow
def test_conversions_of_two_splits_at_once_are_both_in_the_manifest(
    at_once, digits, tmp_path, shard_digests
):
    raw, out = digits
    commands = [
        command(raw, tmp_path / "out", f"--splits={split}") for split in ("train", "validation")
    ]
    for status, output in at_once(*commands):
        assert status == 0, output
    assert shard_digests(tmp_path / "out") == shard_digests(out)


@pytest.fixture
def disturbed(raw_mnist, tmp_path, monkeypatch):
    """disturbed(stage, flags): a conversion of compressed files, with a second one of these flags from its first to its
    last step just before that stage of the first. Both use one temporary file. How each ended: "" or its error."""
    raw_mnist.write()

    def convert(*flags):
        try:
            raw_mnist.convert(tmp_path / "out", *flags)
        except InfeedError as e:
            return str(e)
        return ""

    def run(moment, *flags):
        second = []

        class Twin(Flow):
            def each(self, stage, *given):
                if stage.__name__ == moment:
                    monkeypatch.setattr(graph, "pipeline_of", Stages)
                    second.append(convert(*flags))
                return super().each(stage, *given)

        class Disturbed(Stages):
            flow = Twin

        monkeypatch.setattr(graph, "pipeline_of", Disturbed)
        first = convert("--num-train-shards=3")
        return first, *second

    monkeypatch.setattr(graph, "pipeline_of", Stages)
    raw_mnist.convert(tmp_path / "alone", "--num-train-shards=3")
    return run


@pytest.mark.parametrize("moment", ["scan", "assign", "gather", "commit"])
def test_a_conversion_whose_temporary_file_a_twin_removed_finds_the_twins_shards(
    disturbed, tmp_path, shard_digests, moment
):
    first, second = disturbed(moment, "--num-train-shards=3")
    assert second == ""
    assert "\n" not in first
    assert ("_scratch" in first) == (moment == "scan")  # later on it takes the twin's shards
    assert shard_digests(tmp_path / "out") == shard_digests(tmp_path / "alone")
    assert verify.main([str(tmp_path / "out")]) == 0
    assert not list((tmp_path / "out/_scratch").iterdir())


@pytest.mark.parametrize(
    ("moment", "flag", "refusal"),
    [
        ("scan", "--target-shard-bytes=1", "less than the mean record"),
        ("gather", "--num-train-shards=2", "another plan"),
        ("commit", "--seed=5", "another plan"),
    ],
)
def test_a_refused_command_keeps_the_temporary_file_of_a_running_conversion(
    disturbed, tmp_path, shard_digests, moment, flag, refusal
):
    first, second = disturbed(moment, flag)
    assert refusal in second
    assert first == ""
    assert shard_digests(tmp_path / "out") == shard_digests(tmp_path / "alone")
    assert not list((tmp_path / "out/_scratch").iterdir())
