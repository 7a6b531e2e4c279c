"""idx files: the bytes of the format, every pixel and label, what is refused, the command line."""

import gzip
import io
import json

import numpy as np
import pytest
import tensorflow_datasets as tfds
from converted import records_of, single
from PIL import Image

from converters import idx_to_gcs
from converters.pixels.idx import IdxConverter, ImagesHeader, find_idx
from pipeline.datasets import eval_dataset
from pipeline.errors import ConversionError, LabelError, OptionError, RawDataError
from pipeline.ops import DecodePng
from pipeline.shards.manifest import read_manifest
from pipeline.sources.record_checks import image_problem
from pipeline.storage.local import LocalStorage

pytestmark = pytest.mark.usefixtures("without_beam")


def pixels(record):
    return np.asarray(Image.open(io.BytesIO(record["image/encoded"]), formats=("PNG",)))


def number(record):
    return int(record["image/filename"].removesuffix(b".png"))


def only_plain(raw):
    raw.write()
    for path in raw.directory.glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    return raw


def test_every_pixel_and_label_arrives_under_its_number(raw_mnist, out):
    raw_mnist.write().convert(out, "--num-train-shards=3")
    for split in ("train", "test"):
        records = single(records_of(out, split))
        assert sorted(map(number, records)) == list(range(len(raw_mnist.images[split])))
        for record in records:
            np.testing.assert_array_equal(pixels(record), raw_mnist.images[split][number(record)])
            assert record["image/class/label"] == raw_mnist.labels[split][number(record)]
            assert record["image/class/text"].decode() == str(record["image/class/label"])
            assert (record["image/height"], record["image/width"], record["image/channels"]) == (
                5,
                4,
                1,
            )
            assert (record["image/format"], record["image/colorspace"]) == (b"PNG", b"GRAY")
            assert image_problem(record["image/encoded"]) == ""
    labels = read_manifest(str(out)).labels
    assert (labels.base, labels.names) == (0, tuple(map(str, range(11))))  # as far as the labels go
    assert not list(out.glob("_scratch/*"))


def test_files_of_the_known_bytes_are_read_as_the_format_says(raw, out):
    # http://yann.lecun.com/exdb/mnist/: two images of 2 rows and 3 columns, all numbers big-endian.
    images = bytes.fromhex("00000803 00000002 00000002 00000003 000102 030405 fffefd fcfbfa")
    (raw / "toy-test-images.idx3-ubyte").write_bytes(images)
    (raw / "toy-test-labels.idx1-ubyte").write_bytes(bytes.fromhex("00000801 00000002 07 02"))
    idx_to_gcs.main([f"--raw-data-dir={raw}", f"--gcs-output-path={out}"])
    found = {r["image/class/label"]: pixels(r).tolist() for r in single(records_of(out, "test"))}
    assert found == {7: [[0, 1, 2], [3, 4, 5]], 2: [[255, 254, 253], [252, 251, 250]]}


def test_the_transpose_option_turns_images_and_changes_the_plan(raw_mnist, out):
    raw_mnist.write().convert(out, "--splits=test", "--transpose")
    for record in single(records_of(out, "test")):
        np.testing.assert_array_equal(pixels(record), raw_mnist.images["test"][number(record)].T)
        assert (record["image/height"], record["image/width"]) == (4, 5)
    with pytest.raises(ConversionError, match="--overwrite"):
        raw_mnist.convert(out, "--splits=test")


def test_compressed_plain_and_differently_spelled_files_have_the_same_shards(
    raw_mnist, tmp_path, shard_digests
):
    raw_mnist.write().convert(tmp_path / "gz")
    only_plain(raw_mnist).convert(tmp_path / "plain")
    for path in raw_mnist.directory.glob("*-idx*"):
        path.rename(path.with_name(path.name.replace("-idx", ".idx").replace("t10k", "test")))
    raw_mnist.convert(tmp_path / "dots")
    assert (
        shard_digests(tmp_path / "gz")
        == shard_digests(tmp_path / "plain")
        == shard_digests(tmp_path / "dots")
    )


def test_a_label_that_is_no_class_is_listed(raw_mnist, out):
    flag = f"--label-file={raw_mnist.directory}/digits.txt"
    with pytest.raises(ConversionError, match=r"split 'train': 1 bad record"):
        raw_mnist.write().convert(out, flag)
    (line,) = (json.loads(line) for line in (out / "_rejects/train.jsonl").read_text().splitlines())
    assert (line["key"], line["offset"], line["error"]) == (
        "train/0000003.png", 16 + 3 * 20, "label 10; allowed are 0..9",
    )  # fmt: skip


def test_a_dry_run_accepts_plain_files_and_refuses_compressed_ones_with_the_reason(
    raw_mnist, out, capsys
):
    with pytest.raises(
        OptionError, match=r"images-idx3-ubyte\.gz has to be uncompressed before .* --dry-run"
    ):
        raw_mnist.write().convert(out, "--dry-run")
    raw_mnist.convert(out, "--dry-run", "--splits=test")
    assert "test: 9 records" in capsys.readouterr().out
    assert not out.exists()


def test_a_prefix_must_select_one_of_several_data_sets(raw_mnist, out):
    for name in ("emnist-letters", "emnist-digits"):
        only_plain(raw_mnist)
        for path in list(raw_mnist.directory.iterdir()):
            if path.name.startswith(("train", "t10k")):
                path.rename(path.with_name(f"{name}-{path.name}"))
    with pytest.raises(
        OptionError,
        match="has several datasets: emnist-digits, emnist-letters. Choose one with --p",
    ):
        raw_mnist.convert(out)
    with pytest.raises(
        OptionError, match="--prefix=emnist-letter: .* Did you mean 'emnist-letters'"
    ):
        raw_mnist.convert(out, "--prefix=emnist-letter")
    raw_mnist.convert(out, "--prefix=emnist-letters")
    assert len(single(records_of(out, "test"))) == 9


def spoil(name, change):
    def spoiled(directory):
        path = directory / name
        path.write_bytes(change(path.read_bytes()))

    return spoiled


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
DAMAGES = [
    (spoil(IMAGES, lambda d: d[:-1]), r"ubyte has 495 bytes, but its header requires 496: 24 images of 5 x 4 pixels\."),
    (spoil(IMAGES, lambda d: d + b"x"), r"ubyte has 497 bytes, .*: 24 images of 5 x 4 pixels"),
    (spoil(IMAGES, lambda d: d[:7]), r"ubyte is not an idx file of images: it ends after 7 bytes\. Copy"),
    (spoil(IMAGES, lambda d: b"\x89PNG" + d), r"not an idx file of images: it begins with 89 50 4e 47 instead of 00"),
    (spoil(IMAGES, lambda d: d[:8] + b"\xff" * 8), r"24 images of 4294967295 x 4294967295 pixels; .* sides of 1 to"),
    (spoil(IMAGES, lambda d: d[:4] + b"\0\0\0\0" + d[8:]), r"for 0 images of 5 x 4 pixels; .* at least 1 image"),
    (spoil(IMAGES, lambda d: d[:4] + b"\xff" * 4 + d[8:]), r"has 496 bytes, but .*: 4294967295 images of 5 x 4 pixels"),
    (spoil(LABELS, lambda d: b""), r"idx1-ubyte is not an idx file of labels: it begins with nothing instead of"),
    (spoil(LABELS, lambda d: d[:-2]), r"labels-idx1-ubyte has a header for 24 labels and has 22\. It is damaged"),
    (spoil(LABELS, lambda d: d + b"1"), r"has a header for 24 labels and has more\. It is damaged"),
    (spoil(LABELS, lambda d: d[:7] + b"\x17" + d[8:]), r"has 23 labels, .*train-images-idx3-ubyte has 24 images\."),
    (lambda d: (d / LABELS).unlink(), r"has no labels for .*images-idx3-ubyte\. It needs train-labels-idx1-ubyte"),
    (lambda d: [p.rename(p.with_name(f"x{i}")) for i, p in enumerate(d.iterdir())], r"has no file of images .* x0"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_damage_is_one_clear_error_before_anything_is_written(raw_mnist, out, damage, message):
    damage(only_plain(raw_mnist).directory)
    with pytest.raises(RawDataError, match=message):
        raw_mnist.convert(out)
    assert not out.exists()


@pytest.mark.parametrize("name", [f"{IMAGES}.gz", f"{LABELS}.gz"])
@pytest.mark.parametrize(
    "change", [lambda data: data[:-9], lambda data: data[:-8] + b"\0" * 8], ids=["cut", "crc"]
)
def test_a_damaged_compressed_file_is_named_and_leaves_nothing(raw_mnist, out, name, change):
    spoil(name, change)(raw_mnist.write().directory)
    with pytest.raises(RawDataError, match=rf"{name} is truncated or damaged: .*\. Copy it again"):
        raw_mnist.convert(out)
    assert not [path for path in out.rglob("*") if path.is_file()]


def test_a_missing_split_and_an_invalid_label_file_are_refused(raw_mnist, out):
    for path in raw_mnist.write().directory.glob("t10k*"):
        path.unlink()
    with pytest.raises(RawDataError, match="does not have the test split. It has: train"):
        raw_mnist.convert(out, "--splits=test")
    with pytest.raises(LabelError, match="doubles: b is listed twice"):
        (raw_mnist.directory / "doubles").write_text("a\nb\nb\n")
        raw_mnist.convert(out, f"--label-file={raw_mnist.directory}/doubles")


def test_our_reader_and_tfds_give_the_raw_pixels(raw_mnist, tmp_path, out):
    raw_mnist.write().convert(out, "--splits=test")
    images, labels = raw_mnist.images["test"], raw_mnist.labels["test"]
    raw = {bytes(image.ravel()): label for image, label in zip(images, labels, strict=True)}
    decode = DecodePng("image/encoded", into="image", shape=(5, 4, 1))
    keys = ("image", "image/class/label")
    (batch,) = eval_dataset(
        str(out), split="test", global_batch=9, ops=[decode], keys=keys
    ).batches()
    assert {
        bytes(i.ravel()): n for i, n in zip(batch["image"], batch["image/class/label"], strict=True)
    } == raw
    builder = tfds.builder_from_directory(str(out))
    examples = [example["image"] for example in builder.as_dataset(split="test")]
    assert {e["encoded"].shape for e in examples} == {(5, 4, 1)}
    assert {bytes(e["encoded"].numpy().ravel()): int(e["class"]["label"]) for e in examples} == raw
    assert builder.info.features["image"]["class"]["label"].int2str(7) == "7"
    builder.info.features.save_config(tmp_path)
    assert (tmp_path / "features.json").read_text() == (out / "features.json").read_text()


def test_more_images_than_one_batch_of_references_holds_are_all_found_at_their_places(raw_mnist):
    raw_mnist.images["test"] = np.zeros((9001, 1, 1), np.uint8)
    raw_mnist.labels["test"] = np.arange(9001).astype(np.uint8) % 10
    (source,), labels = find_idx(str(raw_mnist.write().directory), ["test"], None, None)
    converter = IdxConverter(tuple("0123456789"), labels)
    rows = [row for refs in converter.scan(LocalStorage(), source) for row in refs]
    assert [(row.key, row.offset, row.columns["label"]) for row in rows] == [
        (f"test/{n:07d}.png", 16 + n, n % 256 % 10) for n in range(9001)
    ]


def test_the_largest_headers_do_not_overflow():
    header = ImagesHeader.parse(bytes.fromhex("00000803 ffffffff 00001000 00001000"), "x")
    with pytest.raises(RawDataError, match="requires 72057594021150736"):
        header.check_size(10, "x")
