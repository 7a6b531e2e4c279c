"""What recipes for images of one size refuse."""

from dataclasses import replace

import pytest

from pipeline.errors import OptionError
from trainer.recipe import settings
from trainer.recipes import digits
from trainer.recipes.small_images import Cifar10, FashionMnist, Mnist
from trainer.recipes.tiny_images import tiny_images


@pytest.mark.parametrize(("kind", "split"), [(digits.Config, "validation"), (Mnist, "test"), (Cifar10, "test")])
def test_the_split_to_evaluate_is_that_of_the_converter(kind, split):
    assert kind.eval_split == split


def test_data_with_other_classes_are_refused_with_the_recipe_that_takes_them(monkeypatch):
    monkeypatch.setattr(Mnist, "tiny_records", lambda self, split: tiny_images(split, (28, 28, 1), 26, label_base=1))
    with pytest.raises(
        OptionError, match="has 26 classes, numbered from 1; this recipe is for 10 classes, numbered fro"
    ):
        Mnist(tiny=True, trainer=settings(workdir="w")).check()


@pytest.mark.parametrize("fields", [{"widths": ()}, {"widths": (4, 0)}, {"widths": (4,) * 5}, {"hidden": 0}])
def test_a_network_that_cannot_be_built_is_refused(fields):
    with pytest.raises(OptionError, match="give 1 to 4 widths, each above 0, and a dense layer above 0"):
        Mnist(tiny=True, trainer=settings(workdir="w"), **fields)


def test_fashion_mnist_is_mirrored_by_default_and_mnist_is_not():
    config = FashionMnist(tiny=True, trainer=settings(workdir="w"))
    assert [type(op).__name__ for op in config.augmentation()] == ["RandomShift", "RandomFlip"]
    assert len(replace(config, mirror=False).augmentation()) == 1
    assert len(Mnist(tiny=True, trainer=settings(workdir="w")).augmentation()) == 1
