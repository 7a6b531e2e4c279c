"""What the images recipe takes for the image, the label and the classes, and asks for where that is unclear."""

from types import SimpleNamespace

import pytest

from pipeline.description import Description
from pipeline.errors import OptionError
from pipeline.shards.schema import Feature, Labels, Schema
from trainer.config import TrainerConfig
from trainer.recipes.image_data import image_data
from trainer.recipes.images import Config

IMAGE, LABEL, NUMBER = Feature("bytes", content="image"), Feature("int64"), Feature("int64")
NAMES = Labels("label", 1, ("cat", "dog"))


def flags(**given):
    return SimpleNamespace(**{"data_name": "data", "image_key": None, "label_key": None, "num_classes": None} | given)


def found(features, labels=NAMES, **given):
    return image_data(flags(**given), Description(Schema("pictures", features), labels))


def test_the_only_image_and_the_label_with_class_names_are_chosen():
    data = found({"picture": IMAGE, "text": Feature("bytes"), "label": LABEL, "height": NUMBER})
    assert (data.image, data.label, data.base, data.num_classes, data.channels) == ("picture", "label", 1, 2, 3)
    assert [data.labels.name_of(label) for label in (0, 1, 2, 3)] == [None, "cat", "dog", None]


def test_without_names_the_only_integer_is_the_label_and_the_classes_are_counted_by_a_flag():
    data = found({"picture": Feature("bytes", content="image", channels=1), "digit": LABEL}, None, num_classes=10)
    assert (data.label, data.base, data.num_classes, data.names, data.channels) == ("digit", 0, 10, (), 1)
    with pytest.raises(OptionError, match="data has no class names for 'digit'. Give --num-classes"):
        found({"picture": IMAGE, "digit": LABEL}, None)


def test_fewer_classes_than_the_data_have_are_refused_before_a_label_is_out_of_range():
    with pytest.raises(OptionError, match=r"--num-classes=2: data has 3 classes \(cat, dog, owl\)\. Leave it out\."):
        found({"picture": IMAGE, "label": LABEL}, Labels("label", 0, ("cat", "dog", "owl")), num_classes=2)
    assert found({"picture": IMAGE, "label": LABEL}, num_classes=9).num_classes == 9


def test_one_class_is_too_few_to_train_on():
    with pytest.raises(OptionError, match="data has only the class 'new' for 'label'. Give --num-classes"):
        found({"picture": IMAGE, "label": LABEL}, Labels("label", 1, ("new",)))


def test_flags_choose_image_and_label_and_must_name_existing_features():
    features = {"left": IMAGE, "right": IMAGE, "label": LABEL, "breed": NUMBER}
    data = found(features, image_key="right", label_key="breed", num_classes=7)
    assert (data.image, data.label, data.base, data.num_classes, data.names) == ("right", "breed", 0, 7, ())
    with pytest.raises(OptionError, match=r"--image-key=rihgt is not a feature of bytes. Did you mean 'right'"):
        found(features, image_key="rihgt")
    with pytest.raises(OptionError, match="--label-key=left is not one integer per record.*Known: breed, label"):
        found(features, image_key="left", label_key="left")


@pytest.mark.parametrize(
    ("features", "text"),
    [
        (
            {"tokens": NUMBER},
            "image features are none; expected exactly one. Rows of tokens are for the recipes byte_lm and char_lm",
        ),
        ({"a": IMAGE, "b": IMAGE, "label": LABEL}, "the image features are 'a', 'b'; expected exactly one. Give"),
        ({"a": Feature("bytes"), "label": LABEL}, "image features are none; expected .* Give --image-key, one of: a."),
        (
            {"a": Feature("bytes", content="text")},
            "Give --image-key, one of: a. Other data need a recipe of your own: trainer",
        ),
        ({"a": IMAGE, "x": NUMBER, "y": NUMBER}, "one integer are x, y; expected exactly one as the label. Give"),
        ({"a": IMAGE, "label": Feature("int64", (None,))}, "one integer are none; expected exactly one as the label"),
    ],
)
def test_an_ambiguous_image_or_label_is_refused_with_the_flag_that_decides(features, text):
    with pytest.raises(OptionError, match=text.replace("?", r"\?")):
        found(features)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"size": 4}, "size=4 must be at least 8 pixels"),
        ({"size": 16, "widths": (8,) * 5}, "size=16 with 5 widths"),
        ({"widths": ()}, r"widths=\(\) must be one or more"),
        ({"num_classes": 1}, "num_classes=1 must be at least 2"),
    ],
)
def test_an_invalid_flag_is_one_error(flags, text):
    with pytest.raises(OptionError, match=text):
        Config(data_dir="data", trainer=TrainerConfig(workdir="w", global_batch_size=8), **flags)
