"""One set of shards, every reader: TensorFlow with tensorflow/tpu's keys, and TFDS with sub-splits."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from converted import records_of, single
from raw_data.folders import RawImageFolder

from pipeline.ops import DecodeJpeg
from pipeline.shards.manifest import read_manifest

pytestmark = pytest.mark.usefixtures("without_beam")

# The keys of tensorflow/tpu's ImageNet input, as its readers parse them.
TPU_KEYS = {
    "image/encoded": tf.io.FixedLenFeature((), tf.string, ""),
    "image/format": tf.io.FixedLenFeature((), tf.string, "jpeg"),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64, -1),
    "image/class/text": tf.io.FixedLenFeature([], tf.string, ""),
    "image/object/bbox/xmin": tf.io.VarLenFeature(dtype=tf.float32),
    "image/height": tf.io.FixedLenFeature([], tf.int64),
    "image/class/synset": tf.io.FixedLenFeature([], tf.string),
}


@pytest.fixture
def dataset(raw_imagenet, tmp_path):
    raw_imagenet.convert(tmp_path / "out", "--num-train-shards=4", "--num-validation-shards=2")
    return raw_imagenet, str(tmp_path / "out")


def test_tensorflow_reads_the_shards_with_tensorflow_tpus_keys(dataset):
    raw, out = dataset
    files = sorted(tf.io.gfile.glob(f"{out}/train-*"))
    records = [tf.io.parse_example(r, TPU_KEYS) for r in tf.data.TFRecordDataset(files)]
    images = {d for images in raw.train.values() for d in images.values()}
    assert {r["image/encoded"].numpy() for r in records} == images
    for r in records:
        synset = raw.synsets[int(r["image/class/label"]) - 1]
        assert synset.encode() == r["image/class/synset"].numpy()
        assert tf.io.decode_jpeg(r["image/encoded"]).shape == (int(r["image/height"]), 16, 3)


def test_tfds_reads_the_directory_with_names_and_sub_splits(dataset):
    raw, out = dataset
    builder = tfds.builder_from_directory(out)
    assert builder.info.splits["train"].num_examples == 18
    shards = read_manifest(out).splits["validation"].shards
    assert builder.info.splits["validation"].shard_lengths == [shard.records for shard in shards]
    label = builder.info.features["image"]["class"]["label"]
    assert label.num_classes == 4
    assert label.int2str(2) == raw.synsets[1]
    halves = (builder.as_dataset(split=split) for split in ("train[:50%]", "train[50%:]"))
    examples = [each for half in halves for each in half]
    assert len(examples) == 18
    names = {e["image"]["filename"].numpy().decode() for e in examples}
    assert names == {name for images in raw.train.values() for name in images}
    for e in examples:
        synset = e["image"]["class"]["synset"].numpy().decode()
        assert raw.synsets.index(synset) + 1 == int(e["image"]["class"]["label"])
        assert e["image"]["encoded"].shape == (int(e["image"]["height"]), 16, 3)


def test_tfds_reads_images_with_labels_from_a_directory_in_its_own_schema(raw_imagenet, tmp_path):
    raw_imagenet.convert(tmp_path, "--schema=tfds", "--num-train-shards=4", "--splits=train")
    builder = tfds.builder_from_directory(str(tmp_path / "imagenet2012/5.1.0"))
    pairs = list(builder.as_dataset(split="train", as_supervised=True))
    assert sorted(int(label) for _, label in pairs) == [0] * 7 + [1] * 5 + [2] * 6
    assert {image.shape[1:] for image, _ in pairs} == {(16, 3)}
    assert builder.info.homepage == "https://image-net.org/"
    assert "ImageNet Large Scale Visual Recognition Challenge" in builder.info.citation


def test_tfds_reads_texts_with_any_number_of_labels(raw_tables, tmp_path):
    flags = "--text-column=text --labels-column=about --max-bad-records=4 --validation-fraction=0"
    raw_tables.write_texts().convert(tmp_path / "out", *flags.split())
    builder = tfds.builder_from_directory(str(tmp_path / "out"))
    pairs = tfds.as_numpy(builder.as_dataset(split="train", as_supervised=True))
    found = {int(text.decode().split()[2]) % 4: labels.tolist() for text, labels in pairs}
    assert found == {count: [0, 1, 2][:count] for count in range(4)}


@pytest.mark.parametrize("channels", [1, 3])
def test_images_that_came_as_png_webp_or_in_grey_are_decoded_by_every_reader(
    raw_image_folder, tmp_path, channels
):
    raw_image_folder.write("train").convert(tmp_path / "out", "--max-bad-records=3")
    files = sorted(tf.io.gfile.glob(f"{tmp_path}/out/train-*"))
    keys = {key: feature for key, feature in TPU_KEYS.items() if key != "image/class/synset"}
    records = [tf.io.parse_example(record, keys) for record in tf.data.TFRecordDataset(files)]
    assert len(records) == 24
    for record in records:
        decode = DecodeJpeg("image/encoded", shape=(int(record["image/height"]), 16, channels))
        made = decode({"image/encoded": record["image/encoded"].numpy()}, None)
        assert made["image"].dtype == "u1"
        assert raw_image_folder.files[record["image/class/text"].numpy().decode()]
    examples = list(tfds.builder_from_directory(str(tmp_path / "out")).as_dataset(split="train"))
    assert {e["image"]["encoded"].shape[1:] for e in examples} == {(16, 3)}


def test_the_features_file_is_what_tfds_itself_would_write(dataset, tmp_path):
    _, out = dataset
    features = tfds.builder_from_directory(out).info.features
    features.save_config(tmp_path)
    assert tfds.features.FeaturesDict.from_config(tmp_path) is not None
    for name in ("features.json", "image-class-label.labels.txt"):
        ours, theirs = ((Path(directory) / name).read_text() for directory in (out, tmp_path))
        assert ours.rstrip() == theirs.rstrip()


@pytest.mark.parametrize("reader", ["keras", "tfds"])
def test_the_records_of_image_folders_are_the_files_that_other_readers_find(tmp_path, reader):
    raw = RawImageFolder(tmp_path / "raw").write("train").write("test")
    for path in [*raw.directory.glob("*/*/notes.txt"), *raw.directory.glob("*/*/*.webp")]:
        path.unlink()  # which other readers pass over
    if reader == "keras":  # TFDS does not look into folders of class folders
        for place in ("more", "more/and more"):
            (raw.directory / "train/dog" / place).mkdir()
            shutil.copy(raw.directory / "train/dog/100.jpeg", raw.directory / "train/dog" / place)
    raw.convert(tmp_path / "out")
    for split in ("train", "test"):
        records = single(records_of(tmp_path / "out", split))
        found = [(r["image/class/text"], r["image/filename"]) for r in records]
        assert Counter(found) == Counter(files_found_by(reader, raw.directory, split))


def files_found_by(reader, directory, split):
    """(class, base name) of each file."""
    if reader == "keras":
        data = tf.keras.utils.image_dataset_from_directory(str(directory / split))
        paths = data.file_paths
    else:
        builder = tfds.folder_dataset.ImageFolder(str(directory))
        data = builder.as_dataset(split=split)
        paths = [each["image/filename"].numpy().decode() for each in data]
    places = [path.rpartition(f"/{split}/")[2].encode().split(b"/") for path in paths]
    return [(place[0], place[-1]) for place in places]
