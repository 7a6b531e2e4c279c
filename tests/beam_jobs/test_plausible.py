"""What is allowed and cannot be meant: refused by a dry run as by a conversion, and it writes nothing."""

import json

import pytest

from beam_jobs.split.summary import check_places
from pipeline.errors import ConversionError, OptionError
from pipeline.shards.manifest import read_manifest
from pipeline.shards.naming import plan_file

pytestmark = pytest.mark.usefixtures("without_beam")


@pytest.mark.parametrize("target", ["1KB", "1"])
@pytest.mark.parametrize("flags", [["--dry-run"], []], ids=["dry", "run"])
def test_a_target_smaller_than_a_record_is_refused(raw_imagenet, tmp_path, target, flags):
    message = r"--target-shard-bytes=\d+ \(bytes\) is less than the mean record of split 'train', 1.06 KB: .* shards "
    with pytest.raises(ConversionError, match=rf"{message}for 18 records. A number"):
        raw_imagenet.convert(
            tmp_path / "out", f"--target-shard-bytes={target}", "--splits=train", *flags
        )
    assert not [path for path in tmp_path.glob("out/**/*") if path.is_file()]


def test_the_smallest_allowed_target_is_the_mean_record_size(raw_imagenet, tmp_path):
    raw_imagenet.convert(tmp_path / "one", "--num-train-shards=1", "--splits=train")
    claim = json.loads((tmp_path / "one" / plan_file("train")).read_text())
    mean = -(-claim["bytes"] // claim["records"])
    raw_imagenet.convert(tmp_path / "out", f"--target-shard-bytes={mean}", "--splits=train")
    assert len(read_manifest(f"{tmp_path}/out").split("train").shards) == 18
    with pytest.raises(ConversionError, match="is less than the mean record"):
        raw_imagenet.convert(
            tmp_path / "other", f"--target-shard-bytes={mean - 1}", "--splits=train"
        )


def test_more_shards_than_records_are_a_warning_that_counts_the_empty_ones(
    raw_imagenet, tmp_path, capsys
):
    warning = r"warning: 30 shards were requested for 18 records: 12 of them are empty. These are files of 0 bytes, which"
    for flags in (["--dry-run"], []):
        raw_imagenet.convert(tmp_path / "out", "--num-train-shards=30", "--splits=train", *flags)
        assert warning in capsys.readouterr().out
    shards = read_manifest(f"{tmp_path}/out").split("train").shards
    assert (
        sum(not shard.records for shard in shards) == sum(not shard.bytes for shard in shards) == 12
    )
    raw_imagenet.convert(tmp_path / "as_many", "--num-train-shards=18", "--splits=train")
    assert "were requested" not in capsys.readouterr().out


PLACES = [
    ("raw", "raw", "is the directory of the raw data"),
    ("raw", "raw/", "is the directory of the raw data"),
    ("raw", "raw/shards", "is inside the raw data"),
    ("raw/deep", "raw", r"contains the raw data \(.*raw/deep\)"),
]


@pytest.mark.parametrize(("raw", "out", "message"), PLACES)
def test_an_output_that_shares_a_place_with_the_raw_data_is_refused(
    tmp_path, bucket, raw, out, message
):
    (tmp_path / raw).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "raw")
    for written in (
        f"{tmp_path}/{out}",
        f"{tmp_path}/{out}".replace("raw", "link"),
        f"{tmp_path}/raw/../{out}",
    ):
        with pytest.raises(
            OptionError, match=rf"--output=.*{message}.*an output directory outside the raw data"
        ):
            check_places(f"{tmp_path}/{raw}", written)
    with pytest.raises(OptionError, match=message):
        check_places(f"{bucket}/{raw}", f"{bucket}/{out}")


@pytest.mark.parametrize("out", ["raw_shards", "ra", "out/raw", "../raw2"])
def test_output_and_raw_data_may_share_a_name_prefix(tmp_path, out):
    (tmp_path / "raw").mkdir()
    check_places(f"{tmp_path}/raw", f"{tmp_path}/{out}")
    check_places("gs://bucket/raw", f"gs://bucket/{out}")
    check_places(f"{tmp_path}/raw", "gs://bucket/raw")


def test_shards_may_be_written_next_to_a_raw_archive(tmp_path):
    (tmp_path / "images.zip").write_bytes(b"")
    check_places(f"{tmp_path}/images.zip", str(tmp_path))


@pytest.mark.parametrize("inner", ["", "shards"])
def test_an_output_inside_the_raw_data_is_refused(raw_imagenet, inner):
    out, flags = raw_imagenet.directory / inner, ["--splits=train", "--num-train-shards=3"]
    before = sorted(raw_imagenet.directory.rglob("*"))
    for more in ([], ["--dry-run"]):
        with pytest.raises(OptionError, match="a second run would convert shards"):
            raw_imagenet.convert(out, *flags, *more)
    assert sorted(raw_imagenet.directory.rglob("*")) == before
