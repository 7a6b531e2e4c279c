"""TFDS's own imagenet2012 builder, on the same tars, is the oracle: the same names, labels and image bytes."""

import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from converters import imagenet_to_gcs
from converters.imagenet.layouts import RawImagenet, check_full_set, ilsvrc2012_synsets

SPLITS = ("train", "validation")


def official_labels():
    path = tfds.core.tfds_path("datasets/imagenet2012/validation_labels.txt")
    return tuple(path.read_text().split())


@pytest.fixture
def raw(raw_imagenet):
    """Tars of three of the real classes, and of the first validation images with the labels that TFDS has for them."""
    synsets = [list(ilsvrc2012_synsets())[number] for number in (0, 7, 999)]
    renamed = dict(zip(raw_imagenet.synsets, synsets, strict=True))
    raw_imagenet.train = {
        renamed[old]: {name.replace(old, renamed[old]): data for name, data in images.items()}
        for old, images in raw_imagenet.train.items()
    }
    raw_imagenet.validation_labels = official_labels()[: len(raw_imagenet.validation)]
    return raw_imagenet.write()


def rows(dataset, image, label, name):
    """{(file name, label, image bytes)} of parsed examples."""
    keys = {key: tf.io.FixedLenFeature([], tf.string) for key in (image, name)}
    keys[label] = tf.io.FixedLenFeature([], tf.int64)
    parsed = [tf.io.parse_example(record, keys) for record in dataset]
    return sorted((r[name].numpy(), int(r[label]), r[image].numpy()) for r in parsed)


def of_files(pattern, *keys):
    return rows(tf.data.TFRecordDataset(sorted(tf.io.gfile.glob(pattern))), *keys)


def loaded_from(directory, split):
    """[(file name, label, pixels)] as TFDS loads them."""
    rows = tfds.load("imagenet2012", split=split, data_dir=directory, download=False)
    rows = [(row["file_name"], int(row["label"]), row["image"]) for row in tfds.as_numpy(rows)]
    return sorted((name, label, image.tobytes()) for name, label, image in rows)


@pytest.mark.slow
def test_tfds_makes_the_same_records_of_the_same_tars_and_loads_ours(raw, tmp_path):
    oracle = tfds.builder("imagenet2012", data_dir=str(tmp_path / "tfds"))
    config = tfds.download.DownloadConfig(manual_dir=raw.directory)
    oracle.download_and_prepare(download_config=config)
    flags = [f"--raw-data-dir={raw.directory}"]
    ours = [f"--gcs-output-path={tmp_path}/ours", "--schema=tfds", "--num-train-shards=3"]
    imagenet_to_gcs.main([*flags, *ours])
    imagenet_to_gcs.main([*flags, f"--gcs-output-path={tmp_path}/tpu"])
    for split in SPLITS:
        keys = ("image", "label", "file_name")
        theirs = of_files(f"{oracle.data_dir}/imagenet2012-{split}*", *keys)
        own = f"{tmp_path}/ours/imagenet2012/5.1.0/imagenet2012-{split}*"
        assert theirs == of_files(own, *keys)
        keys = ("image/encoded", "image/class/label", "image/filename")
        tpu = of_files(f"{tmp_path}/tpu/{split}-*", *keys)
        assert theirs == [(name, label - 1, image) for name, label, image in tpu]
        loaded = [loaded_from(tmp_path / name, split) for name in ("ours", "tfds")]
        assert loaded[0] == loaded[1]
        assert len(theirs) == len(loaded[0]) == {"train": 18, "validation": 4}[split]


def test_the_words_of_the_classes_are_in_the_records(raw, tmp_path):
    flags = f"--raw-data-dir={raw.directory} --gcs-output-path={tmp_path}/words --splits=train"
    imagenet_to_gcs.main(flags.split())
    keys = ("image/class/text", "image/class/label", "image/class/synset")
    found = of_files(f"{tmp_path}/words/train-*", *keys)
    words = {(synset, text) for synset, _, text in found}
    assert words == {
        (b"n01440764", b"tench, Tinca tinca"),
        (b"n01514668", b"cock"),
        (b"n15075141", b"toilet tissue, toilet paper, bathroom tissue"),
    }


def test_the_official_validation_labels_are_known():
    check_full_set(RawImagenet((), official_labels()), ["validation"])
