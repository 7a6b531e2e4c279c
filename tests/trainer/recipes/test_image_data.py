"""What the images recipe takes for the image, the label and the classes, and asks for where that is unclear."""

import pytest

from pipeline.errors import OptionError
from pipeline.shards.schema import Feature, Labels, Schema
from trainer.config import TrainerConfig
from trainer.recipes.image_data import Choices, image_data
from trainer.recipes.images import Config

IMAGE, LABEL, NUMBER = Feature("bytes", content="image"), Feature("int64"), Feature("int64")
NAMES = Labels("label", 1, ("cat", "dog"))


def found(features, labels=NAMES, **flags):
    return image_data(Choices("data", **flags), Schema("pictures", features), labels)


def test_the_only_image_and_the_label_that_has_names_are_taken():
    data = found({"picture": IMAGE, "text": Feature("bytes"), "label": LABEL, "height": NUMBER})
    assert (data.image, data.label, data.base, data.num_classes, data.channels) == ("picture", "label", 1, 2, 3)
    assert [data.name(label) for label in (0, 1, 2, 3)] == [None, "cat", "dog", None]


def test_without_names_the_only_integer_is_the_label_and_the_classes_are_counted_by_a_flag():
    data = found({"picture": Feature("bytes", content="image", channels=1), "digit": LABEL}, None, num_classes=10)
    assert (data.label, data.base, data.num_classes, data.names, data.channels) == ("digit", 0, 10, (), 1)
    with pytest.raises(OptionError, match="data has no class names for 'digit'. Give --num-classes"):
        found({"picture": IMAGE, "digit": LABEL}, None)


def test_flags_decide_and_what_they_name_must_be_there():
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
        ({"a": IMAGE, "b": IMAGE, "label": LABEL}, "the image features are 'a', 'b'; expected exactly one. Give"),
        ({"a": Feature("bytes"), "label": LABEL}, "image features are none; expected .* Give --image-key, one of: a."),
        ({"a": IMAGE, "x": NUMBER, "y": NUMBER}, "one integer are x, y; expected exactly one as the label. Give"),
        ({"a": IMAGE, "label": Feature("int64", (None,))}, "one integer are none; expected exactly one as the label"),
    ],
)
def test_where_there_is_a_choice_the_flag_is_named(features, text):
    with pytest.raises(OptionError, match=text.replace("?", r"\?")):
        found(features)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"size": 4}, "size=4 with 4 widths: each width halves the image"),
        ({"size": 16, "widths": (8,) * 5}, "size=16 with 5 widths"),
        ({"widths": ()}, r"widths=\(\) must be one or more"),
        ({"num_classes": 1}, "num_classes=1 must be at least 2"),
    ],
)
def test_a_flag_that_cannot_be_is_one_error(flags, text):
    with pytest.raises(OptionError, match=text):
        Config(data_dir="data", trainer=TrainerConfig(workdir="w", global_batch_size=8), **flags)
