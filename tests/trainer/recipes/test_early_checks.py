"""What a command refuses before it comes to JAX, in one line with exit code 2; tests/test_mistakes.py has more."""

import os
import shutil
from pathlib import Path

import pytest

from pipeline.commands.index import main as index
from pipeline.shards.example import encode_example
from pipeline.shards.frames import frame
from pipeline.shards.schema import Feature, Schema
from trainer.__main__ import main

PICTURES = Schema(
    "pictures", {"image/encoded": Feature("bytes"), "image/class/label": Feature("int64")}
)


def write(directory, schema, record):
    """An indexed dataset: two shards for training, one for validation."""
    directory.mkdir()
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"):
        (directory / name).write_bytes(frame(encode_example(schema, record)) * 8)
    assert index([str(directory)]) == 0
    return directory


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    record = {"image/encoded": b"\xff\xd8\xff\xe0", "image/class/label": 1}
    return write(tmp_path_factory.mktemp("data") / "pictures", PICTURES, record)


@pytest.fixture
def refused(capsys, tmp_path, monkeypatch):
    """refused(arguments): the one line on stderr of a command that fails before it comes to JAX."""

    def run(*arguments):
        monkeypatch.setattr(
            "trainer.hosts.devices.Devices.choose",
            lambda devices: pytest.fail("it was not refused early"),
        )
        workdir = () if "--workdir" in arguments else ("--workdir", str(tmp_path / "work"))
        assert main([*arguments, *workdir]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return run


def test_a_shard_that_is_missing_or_truncated_is_named_before_anything_is_trained(
    pictures, tmp_path, refused
):
    data = shutil.copytree(pictures, tmp_path / "data")
    os.truncate(data / "validation-00000-of-00001", 10)
    assert "validation-00000-of-00001 has 10 bytes, the manifest says " in refused(
        "digits", "--data-dir", str(data)
    )
    (data / "train-00001-of-00002").unlink()
    assert "train-00001-of-00002 is missing. The shard is" in refused(
        "digits", "--data-dir", str(data)
    )
    assert "validation-00000-of" in refused(
        "digits", "--data-dir", str(data), "--train-split", "validation"
    )


@pytest.mark.parametrize(
    ("recipe", "flags", "text"),
    [
        ("images", ("--eval-split", "test"), "has no split 'test'"),
        ("images", ("--image-key", "image"), "--image-key=image is not a feature of bytes"),
        ("images", ("--color-jitter", "2"), "--color-jitter=2.0"),
        ("images", ("--mixup", "-1"), "mixup=-1.0"),
        ("digits", ("--data-dir", ""), "a path is empty"),
        ("images", ("--data-dir", "d/manifest.json"), "Give its directory: d"),
        ("byte_lm", ("--temperature", "-1"), "temperature=-1.0"),
        ("byte_lm", ("--width", "20"), "width=20 is not a multiple of twice the heads"),
        ("byte_lm", ("--attention", "cudnn"), "attention=cudnn computes in 16 bits"),
        ("char_lm", ("--dropout", "1"), "dropout=1.0"),
        ("char_lm", ("--num-samples", "0"), "--num-samples=0"),
        ("digits", ("--max-steps", "None"), "the run needs an end"),
        ("digits", ("--checkpoint-path", "runs/a"), "--checkpoint-path='runs/a' with --mode=train"),
        (
            "images",
            ("--mode", "predict", "--checkpoint-path", "runs/a"),
            "--checkpoint-path='runs/a' has no checkpoint",
        ),
        ("digits", ("--follow-seconds", "0"), "--follow-seconds=0.0"),
        ("digits", ("--num-devices", "2"), "--num-devices=2 is given with --platform=None"),
        ("digits", ("--restore-step", "7"), "work is no directory"),
        (
            "digits",
            ("--restore-step", "7", "--mode", "export"),
            "work/checkpoints/7.",
        ),
        ("digits", ("--export-pth", "x"), "Did you mean --export-path?"),
        ("digits", ("--workdir", "/dev/null/work"), "cannot write to --workdir=/dev/null/work"),
    ],
)
def test_a_mistake_in_the_flags_is_reported_before_devices_are_chosen(
    pictures, refused, recipe, flags, text
):
    assert text in refused(recipe, "--data-dir", str(pictures), *flags)


def test_a_mode_that_does_not_train_needs_no_split_for_training(pictures, tmp_path, refused):
    data = shutil.copytree(pictures, tmp_path / "data")
    (data / "train-00000-of-00002").unlink()
    for item in ("contents", "state"):
        (tmp_path / "work" / "checkpoints" / "3" / item).mkdir(parents=True)
    flags = ("--data-dir", str(data), "--mode", "predict")
    assert "has no split 'test'" in refused("digits", *flags, "--eval-split", "test")


def test_a_removed_restore_step_is_accepted_if_a_later_checkpoint_exists(
    pictures, tmp_path, refused
):
    """A run that went back once goes on from its newest."""
    checkpoints = tmp_path / "work" / "checkpoints"
    for item in ("contents", "state"):
        (checkpoints / "9" / item).mkdir(parents=True)
    flags = ("--data-dir", str(pictures), "--restore-step")
    assert "has no checkpoint of step 12. It has: [9]." in refused("digits", *flags, "12")
    assert "no split 'none'" in refused("digits", *flags, "5", "--eval-split", "none")


def test_a_refused_command_makes_no_work_directory(pictures, tmp_path, refused):
    refused("digits", "--data-dir", str(pictures), "--eval-split", "none")
    assert not Path(tmp_path, "work").exists()
