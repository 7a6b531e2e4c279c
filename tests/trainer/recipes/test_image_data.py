"""Images for recipes: which feature is the image and which the label, the classes, file names, and what is refused."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from pipeline.description import Description
from pipeline.errors import OptionError
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.sources.open_dataset import open_dataset
from trainer.recipe import settings
from trainer.recipes.image_data import FileNames, file_name_key, image_data
from trainer.recipes.images import Config
from trainer.recipes.small_images import Cifar10, Digits, FashionMnist, Mnist
from trainer.recipes.tiny import tiny_images

IMAGE, LABEL, NUMBER = Feature("bytes", content="image"), Feature("int64"), Feature("int64")
NAMES = Labels("label", 1, ("cat", "dog"))


def flags(**given):
    return SimpleNamespace(
        **{"data_name": "data", "image_key": None, "label_key": None, "num_classes": None} | given
    )


def found(features, labels=NAMES, **given):
    return image_data(flags(**given), Description(Schema("pictures", features), labels))


def test_the_only_image_and_the_label_with_class_names_are_chosen():
    data = found({"picture": IMAGE, "text": Feature("bytes"), "label": LABEL, "height": NUMBER})
    assert (data.image, data.label, data.base, data.num_classes, data.channels) == (
        "picture",
        "label",
        1,
        2,
        3,
    )
    assert [data.labels.name_of(label) for label in (0, 1, 2, 3)] == [None, "cat", "dog", None]


def test_without_names_the_only_integer_is_the_label_and_the_classes_are_counted_by_a_flag():
    data = found(
        {"picture": Feature("bytes", content="image", channels=1), "digit": LABEL},
        None,
        num_classes=10,
    )
    assert (data.label, data.base, data.num_classes, data.names, data.channels) == (
        "digit",
        0,
        10,
        (),
        1,
    )


def test_flags_choose_image_and_label_and_must_name_existing_features():
    features = {"left": IMAGE, "right": IMAGE, "label": LABEL, "breed": NUMBER}
    data = found(features, image_key="right", label_key="breed", num_classes=7)
    assert (data.image, data.label, data.base, data.num_classes, data.names) == (
        "right",
        "breed",
        0,
        7,
        (),
    )
    assert found({"picture": IMAGE, "label": LABEL}, num_classes=9).num_classes == 9


OWLS, NEW = Labels("label", 0, ("cat", "dog", "owl")), Labels("label", 1, ("new",))
BOTH = {"left": IMAGE, "right": IMAGE, "label": LABEL, "breed": NUMBER}
ONE = {"a": IMAGE, "label": LABEL}


@pytest.mark.parametrize(
    ("features", "labels", "given", "text"),
    [
        ({"a": IMAGE, "digit": LABEL}, None, {}, "data has no class names for 'digit'. Give --num-classes"),
        (ONE, OWLS, {"num_classes": 2}, r"--num-classes=2: data has 3 classes \(cat, dog, owl\)\. Leave it out\."),
        (ONE, NEW, {}, "data has only the class 'new' for 'label'. Give --num-classes"),
        (BOTH, NAMES, {"image_key": "rihgt"}, r"--image-key=rihgt is not a feature of bytes. Did you mean 'right'"),
        (BOTH, NAMES, {"image_key": "left", "label_key": "left"}, "--label-key=left is not one integer per record.*Known: breed, label"),
        ({"tokens": NUMBER}, NAMES, {}, "Rows of tokens are for the recipes byte_lm and char_lm"),
        (BOTH, NAMES, {}, "the image features are 'left', 'right'"),
        ({"a": Feature("bytes"), "label": LABEL}, NAMES, {}, "image features are none"),
        ({"a": Feature("bytes", content="text")}, NAMES, {}, "Other data need a recipe of your own"),
        ({"a": IMAGE, "x": NUMBER, "y": NUMBER}, NAMES, {}, "one integer are x, y"),
        ({"a": IMAGE, "label": Feature("int64", (None,))}, NAMES, {}, "one integer are none"),
    ],
)  # fmt: skip
def test_ambiguous_or_too_few_data_are_refused_with_the_flag_that_decides(
    features, labels, given, text
):
    with pytest.raises(OptionError, match=text):
        found(features, labels, **given)


@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        (Config, {"size": 16, "widths": (8,) * 5}, "size=16 with 5 widths"),
        (Config, {"widths": ()}, r"widths=\(\)"),
        (Config, {"num_classes": 1}, "num_classes=1"),
        *((Mnist, fields, "widths") for fields in ({"widths": ()}, {"widths": (4, 0)}, {"widths": (4,) * 5}, {"hidden": 0})),
    ],
)  # fmt: skip
def test_a_network_that_cannot_be_built_is_refused(kind, fields, text):
    with pytest.raises(OptionError, match=text):
        kind(tiny=True, trainer=settings(workdir="w"), **fields)


@pytest.mark.parametrize(
    ("kind", "split"), [(Digits, "validation"), (Mnist, "test"), (Cifar10, "test")]
)
def test_the_split_to_evaluate_is_that_of_the_converter(kind, split):
    assert kind.eval_split == split


def test_data_with_other_classes_are_refused_with_the_recipe_that_takes_them(monkeypatch):
    monkeypatch.setattr(
        Mnist, "tiny_records", lambda self, split: tiny_images(split, (28, 28, 1), 26, label_base=1)
    )
    with pytest.raises(OptionError, match="has 26 classes, numbered from 1"):
        Mnist(tiny=True, trainer=settings(workdir="w")).check()


def test_fashion_mnist_is_mirrored_by_default_and_mnist_is_not():
    config = FashionMnist(tiny=True, trainer=settings(workdir="w"))
    assert [type(op).__name__ for op in config.augmentation()] == ["RandomShift", "RandomFlip"]
    assert len(replace(config, mirror=False).augmentation()) == 1
    assert len(Mnist(tiny=True, trainer=settings(workdir="w")).augmentation()) == 1


def test_names_are_those_of_the_records_across_blocks_and_from_any_number(digits, monkeypatch):
    records = open_dataset(str(digits[1]), "validation")
    expected = [
        example["image/filename"].decode() for example in records.examples(["image/filename"])
    ]
    monkeypatch.setattr("trainer.recipes.image_data.BLOCK_BYTES", 40 * 1024)  # some 30 records
    names = FileNames(records, "image/filename")
    assert [names[number] for number in range(len(records))] == expected
    assert [names[number] for number in (367, 0, 31, 29)] == [
        expected[number] for number in (367, 0, 31, 29)
    ]
    assert FileNames(records, "image/encodings")[5] is None


def test_the_feature_with_the_file_name_is_that_of_infeed_or_of_tfds():
    text = Feature("bytes", content="text")
    assert file_name_key(Schema("a", {"image/filename": text})) == "image/filename"
    assert file_name_key(Schema("a", {"file_name": text, "label": Feature("int64")})) == "file_name"
    assert file_name_key(Schema("a", {"file_name": Feature("int64")})) is None
