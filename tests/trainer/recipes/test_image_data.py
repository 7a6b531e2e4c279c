"""Images for recipes: which feature is the image and which the label, the classes, file names, and what is refused."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from pipeline.description import Description
from pipeline.errors import OptionError
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.sources.open_dataset import open_dataset
from trainer.config import TrainerConfig
from trainer.recipe import settings
from trainer.recipes.image_data import FileNames, file_name_key, image_data, tiny_images
from trainer.recipes.images import Config
from trainer.recipes.small_images import Cifar10, Digits, FashionMnist, Mnist

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
    with pytest.raises(
        OptionError, match="data has no class names for 'digit'. Give --num-classes"
    ):
        found({"picture": IMAGE, "digit": LABEL}, None)


def test_fewer_classes_than_the_data_have_are_refused_before_a_label_is_out_of_range():
    with pytest.raises(
        OptionError, match=r"--num-classes=2: data has 3 classes \(cat, dog, owl\)\. Leave it out\."
    ):
        found(
            {"picture": IMAGE, "label": LABEL},
            Labels("label", 0, ("cat", "dog", "owl")),
            num_classes=2,
        )
    assert found({"picture": IMAGE, "label": LABEL}, num_classes=9).num_classes == 9


def test_one_class_is_too_few_to_train_on():
    with pytest.raises(
        OptionError, match="data has only the class 'new' for 'label'. Give --num-classes"
    ):
        found({"picture": IMAGE, "label": LABEL}, Labels("label", 1, ("new",)))


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
    with pytest.raises(
        OptionError, match=r"--image-key=rihgt is not a feature of bytes. Did you mean 'right'"
    ):
        found(features, image_key="rihgt")
    with pytest.raises(
        OptionError, match="--label-key=left is not one integer per record.*Known: breed, label"
    ):
        found(features, image_key="left", label_key="left")


@pytest.mark.parametrize(
    ("features", "text"),
    [
        ({"tokens": NUMBER}, "Rows of tokens are for the recipes byte_lm and char_lm"),
        ({"a": IMAGE, "b": IMAGE, "label": LABEL}, "the image features are 'a', 'b'"),
        ({"a": Feature("bytes"), "label": LABEL}, "image features are none"),
        ({"a": Feature("bytes", content="text")}, "Other data need a recipe of your own"),
        ({"a": IMAGE, "x": NUMBER, "y": NUMBER}, "one integer are x, y"),
        ({"a": IMAGE, "label": Feature("int64", (None,))}, "one integer are none"),
    ],
)
def test_an_ambiguous_image_or_label_is_refused_with_the_flag_that_decides(features, text):
    with pytest.raises(OptionError, match=text.replace("?", r"\?")):
        found(features)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"size": 16, "widths": (8,) * 5}, "size=16 with 5 widths"),
        ({"widths": ()}, r"widths=\(\)"),
        ({"num_classes": 1}, "num_classes=1"),
    ],
)
def test_an_invalid_flag_is_one_error(flags, text):
    with pytest.raises(OptionError, match=text):
        Config(data_dir="data", trainer=TrainerConfig(workdir="w", global_batch_size=8), **flags)


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


@pytest.mark.parametrize(
    "fields", [{"widths": ()}, {"widths": (4, 0)}, {"widths": (4,) * 5}, {"hidden": 0}]
)
def test_a_network_that_cannot_be_built_is_refused(fields):
    with pytest.raises(OptionError, match="widths"):
        Mnist(tiny=True, trainer=settings(workdir="w"), **fields)


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
