"""Every recipe with fields that make its model narrow, so that a test can train it in a second."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from trainer.models.resnet import RESNETS
from trainer.models.vit import VITS, VitShape

_CNN: dict[str, Any] = {"widths": (8, 16), "hidden": 32}
NARROW: Mapping[str, dict[str, Any]] = {
    "digits": {},
    "mnist": _CNN,
    "fashion_mnist": _CNN,
    "cifar10": {},
    "images": {"size": 32, "widths": (8, 16)},
    "imagenet_resnet50": {"size": 32},
    "imagenet_vit": {"size": 32},
    "tabular": {"widths": (8,)},
    "char_lm": {"width": 16},
    "byte_lm": {"layers": 2, "width": 16, "heads": 2},
}

QUICK = ("digits", "tabular", "char_lm")  # one for each kind of data


def row(recipe: str, *values: object) -> Any:
    """A row of a test's table: part of the quick suite if its recipe is one of QUICK."""
    return pytest.param(recipe, *values, marks=() if recipe in QUICK else pytest.mark.slow)


@contextmanager
def narrow_models() -> Iterator[None]:
    """Residual networks of one block with eight channels, and a Vision Transformer of two layers."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("resnet20", "resnet50"):
            patch.setitem(RESNETS, name, replace(RESNETS[name], depths=(1,), widths=(8,)))
        patch.setitem(VITS, "vit_s16", VitShape(2, 16, 2))
        yield
