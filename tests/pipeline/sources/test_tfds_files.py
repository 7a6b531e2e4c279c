"""What TFDS's small files state about classes."""

import json

from pipeline.shards.schema import Labels
from pipeline.sources.tfds_files import tfds_classes, tfds_labels


def files(names=None, **num_classes):
    kinds = {key: {"classLabel": {"numClasses": str(number)}} for key, number in num_classes.items()}
    features = {"image": {"image": {}}, **kinds}
    texts = {"features.json": json.dumps({"featuresDict": {"features": features}})}
    return texts | ({"label.labels.txt": "\n".join(names) + "\n"} if names else {})


def test_names_of_classes_are_those_of_the_file():
    assert tfds_classes(files(["cat", "dog"], label=2)) == tfds_labels(files(["cat", "dog"], label=2))
    assert tfds_classes(files(["cat", "dog"], label=2)) == Labels("label", 0, ("cat", "dog"))


def test_classes_without_names_are_called_by_their_numbers_as_in_tfds():
    assert tfds_classes(files(digit=3)) == Labels("digit", 0, ("0", "1", "2"))
    assert tfds_labels(files(digit=3)) is None  # part of a conversion's plan, so it stays


def test_the_class_label_named_label_is_chosen_from_several():
    assert tfds_classes(files(label=2, other=3)) == Labels("label", 0, ("0", "1"))
    assert tfds_classes(files(first=2, other=3)) is None
    assert tfds_classes({}) is None
