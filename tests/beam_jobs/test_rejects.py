"""Rejects: a dry run counts those of the scan; a failing run commits the good splits and lists the rejects of all."""

import pytest

from converters import imagenet_to_gcs
from pipeline.errors import ConversionError
from pipeline.shards.manifest import read_manifest

pytestmark = pytest.mark.usefixtures("without_beam")


@pytest.fixture
def bad(raw_imagenet):
    """Two empty images and one of rubbish among train's, an empty one among validation's: the scan finds the empty."""
    train, other = raw_imagenet.train["n00000001"], raw_imagenet.train["n00000002"]
    train["n00000001_1.JPEG"] = train["n00000001_3.JPEG"] = b""
    other["n00000002_1.JPEG"] = b"no image"
    return raw_imagenet.write()


def convert(raw, out, *flags):
    command = [f"--raw-data-dir={raw.directory}", f"--gcs-output-path={out}"]
    return imagenet_to_gcs.main([*command, f"--label-file={raw.directory}/synsets.txt", *flags])


@pytest.mark.parametrize(("allowed", "status"), [(0, 1), (1, 1), (2, 0)])
def test_a_dry_run_says_what_it_knows_of_more_rejects_than_allowed_and_exits_with_1(
    bad, tmp_path, capsys, allowed, status
):
    assert convert(bad, tmp_path / "out", "--dry-run", f"--max-bad-records={allowed}") == status
    printed = capsys.readouterr().out
    foreseen = f"train: at least 2 bad records, more than --max-bad-records={allowed}: the conversion would fail.\n"
    assert (foreseen in printed) == bool(status)
    assert printed.endswith("Dry run: nothing was written.\n")
    assert not (tmp_path / "out").exists()


def test_a_dry_run_of_rejects_alone_would_fail_whatever_is_allowed(raw_imagenet, tmp_path, capsys):
    for files in raw_imagenet.train.values():
        files.update(dict.fromkeys(files, b""))
    assert convert(raw_imagenet.write(), tmp_path / "out", "--dry-run", "--max-bad-records=99") == 1
    assert "train: no records: the conversion would fail.\n" in capsys.readouterr().out


def test_a_failing_run_lists_the_rejects_of_all_splits_and_commits_the_good_ones(
    bad, tmp_path, capsys
):
    out = tmp_path / "out"
    with pytest.raises(
        ConversionError, match=r"^split 'train': 3 bad records; --max-bad-records allows 0:\n"
    ):
        convert(bad, out)
    assert "validation: 4 records" in capsys.readouterr().out
    assert list(read_manifest(str(out)).splits) == ["validation"]
    assert convert(bad, out, "--max-bad-records=3") == 0
    assert list(read_manifest(str(out)).splits) == ["train", "validation"]
