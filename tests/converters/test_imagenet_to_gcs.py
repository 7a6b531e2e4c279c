"""The command line; on Beam's local runner where the runner can make a difference."""

import json
import subprocess
import sys

import pytest

from converters import imagenet_to_gcs
from pipeline.errors import ConversionError
from pipeline.shards.example_decoding import decode_example
from pipeline.shards.manifest import read_manifest
from pipeline.shards.record import FRAME_BYTES, HEADER_BYTES

without_beam = pytest.mark.usefixtures("without_beam")


def run(*flags):
    command = [sys.executable, "-m", "converters.imagenet_to_gcs", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def flags_of(raw, out):
    return [f"--raw-data-dir={raw}", f"--gcs-output-path={out}", f"--label-file={raw}/synsets.txt"]


def records_of(path):
    data, records, at = path.read_bytes(), [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        records.append(decode_example(data[at + HEADER_BYTES : at + HEADER_BYTES + size]))
        at += size + FRAME_BYTES
    return records


def test_shards_are_within_one_percent_of_the_mean_where_records_are_small(digits, shard_digests):
    entry = read_manifest(str(digits[1])).split("train")
    sizes = [shard.bytes for shard in entry.shards]
    mean = sum(sizes) / len(sizes)
    assert len(sizes) == 15
    assert max(abs(size / mean - 1) for size in sizes) <= 0.01
    assert len(shard_digests(digits[1])) == 15 + 4 + 2 + 1


def test_every_image_arrives_once_byte_for_byte_under_its_label(raw_imagenet, tmp_path):
    out = tmp_path / "out"
    raw_imagenet.convert(out, "--num-train-shards=4", "--num-validation-shards=2")
    for split, images in (("train", {n: d for c in raw_imagenet.train.values() for n, d in c.items()}),
                          ("validation", raw_imagenet.validation)):  # fmt: skip
        records = [record for path in sorted(out.glob(f"{split}-*")) for record in records_of(path)]
        assert {r["image/filename"][0].decode(): r["image/encoded"][0] for r in records} == images
        assert len(records) == len(images)
        for record in records:
            assert record["image/class/label"][0] == 1 + raw_imagenet.synsets.index(
                record["image/class/synset"][0].decode()
            )
            assert (record["image/width"], record["image/channels"]) == ([16], [3])
    assert len(list(out.glob("train-*-of-00004"))) == 4




def test_a_dry_run_tells_the_plan_and_writes_nothing(digits, tmp_path, capsys):
    raw, out = digits
    imagenet_to_gcs.main([*flags_of(raw, tmp_path / "none"), "--target-shard-bytes=100KB", "--dry-run"])
    printed = capsys.readouterr().out
    assert "train: 1,429 records, 1.52 MB in 15 shards of 100 KB..102 KB" in printed
    assert read_manifest(str(out)).split("train").plan_digest in printed
    assert not (tmp_path / "none").exists()


def spoil_truncated(raw):
    raw.train["n00000002"]["n00000002_1.JPEG"] = raw.train["n00000002"]["n00000002_1.JPEG"][:-50]


def spoil_duplicate(raw):
    raw.train["n00000001"]["sub/n00000001_1.JPEG"] = raw.train["n00000001"]["n00000001_2.JPEG"]


BAD_RECORDS = {
    "truncated": (spoil_truncated, r"1 bad record;.*\n  train/n00000002/n00000002_1\.JPEG: truncated or damaged JPEG"),
    "duplicate": (
        spoil_duplicate,
        r"1 bad record;.*\n  train/n00000001/n00000001_1\.JPEG: duplicate key: another record",
    ),
}


@without_beam
@pytest.mark.parametrize("case", BAD_RECORDS)
def test_a_bad_record_fails_the_split_unless_it_is_allowed(raw_imagenet, tmp_path, case):
    spoil, message = BAD_RECORDS[case]
    spoil(raw_imagenet)
    raw_imagenet.write()
    with pytest.raises(ConversionError, match=message):
        raw_imagenet.convert(tmp_path / "out", "--splits=train")
    assert not (tmp_path / "out/manifest.json").exists()
    raw_imagenet.convert(tmp_path / "out", "--splits=train", "--max-bad-records=1")
    entry = read_manifest(str(tmp_path / "out")).split("train")
    assert entry.rejected == len((tmp_path / "out/_rejects/train.jsonl").read_text().splitlines()) == 1
    assert json.loads((tmp_path / "out/_rejects/train.jsonl").read_text())["uri"].endswith("train.tar")




