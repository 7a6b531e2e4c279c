"""How published weights name and lay out the arrays of our models: a table per family, read in both
directions.

Light, as the flags of a warm start are: weights.py reads and writes by the tables."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

from pipeline.errors import OptionError

__all__ = ["MAPPINGS", "Row", "WeightMapping"]

Names = Literal["own", "timm", "torchvision", "transformers"]


@cache
def expression(pattern: str) -> re.Pattern[str]:
    """Matches the names of a pattern. Its groups are what each * matches, as little as possible."""
    return re.compile("(.*?)".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def filled(pattern: str, parts: Iterable[str]) -> str:
    """The pattern with the first of the parts in place of its stars."""
    rest = iter(parts)
    return "".join(next(rest) if char == "*" else char for char in pattern)


@dataclass(frozen=True)
class Row:
    """An array of theirs and one of ours, by patterns of their names. Each * keeps what it matches.

    If theirs has one * more, ours is a stack along axis 0 of layers, which the first * numbers. If
    several rows of a table have the same theirs, it is their arrays joined along axis 0, in the
    order of the rows. inputs, outputs: how many of the last axes of ours are inputs of a layer, and
    how many, after these, are outputs; theirs has one axis for each, first: [out, in, height,
    width]. kind: "positions": of the patches of square images, after those of tokens; resized for
    images of another size. "unread": only they have it, such as a count of batches; 0 when it is
    written."""

    theirs: str
    ours: str
    inputs: int = 0
    outputs: int = 0
    kind: Literal["plain", "positions", "unread"] = "plain"

    def __post_init__(self) -> None:
        if self.theirs.count("*") - self.ours.count("*") not in (0, 1):
            raise OptionError(
                f"{self}: theirs must have as many * as ours, or one more for a layer's number."
            )

    @property
    def stacked(self) -> bool:
        """Whether axis 0 of ours are layers."""
        return self.theirs.count("*") > self.ours.count("*")

    def view(self, layer: Any) -> Any:
        """A view of an array of ours, without the axis of layers, in their layout: who assigns to
        it writes ours."""
        if not self.outputs:
            return layer
        if not self.inputs:
            return layer.reshape(-1)
        last = layer.ndim - self.outputs
        first = last - self.inputs
        flat = layer.reshape(*layer.shape[:first], math.prod(layer.shape[first:last]), -1)
        return flat.transpose(first + 1, first, *range(first))


class Place(NamedTuple):
    """Where an array of a model is: theirs has its layers, or is the only one. Each of them has
    `parts` arrays of ours along axis 0, of which this is number `part`."""

    row: Row
    ours: str
    theirs: list[str]
    part: int
    parts: int


@dataclass(frozen=True)
class WeightMapping:
    """A layout of weights. name: in the log and in errors. rows: of all arrays. libraries: that
    read it."""

    name: str
    rows: tuple[Row, ...]
    libraries: tuple[Names, ...] = ()

    def places(self, model: Mapping[str, Any]) -> Iterator[Place]:
        """Where each array of a model is, one for each row that has it."""
        for row in self.rows:
            joined = [each for each in self.rows if each.theirs == row.theirs]
            for name, array in model.items():
                if match := expression(row.ours).fullmatch(name):
                    layers = [(str(n),) for n in range(array.shape[0])] if row.stacked else [()]
                    theirs = [filled(row.theirs, each + match.groups()) for each in layers]
                    yield Place(row, name, theirs, joined.index(row), len(joined))

    def names_all(self, names: Iterable[str]) -> bool:
        """Whether all of these are names in this layout, for a model of any depth."""
        patterns = [expression(row.theirs) for row in self.rows]
        return all(any(each.fullmatch(name) for each in patterns) for name in names)

    def differences(self, model: Mapping[str, Any]) -> set[str]:
        """The model's arrays that have no row, and the rows' arrays that the model lacks."""
        known = {place.ours for place in self.places(model)}
        own = {row.ours for row in self.rows if "*" not in row.ours}
        return (own | model.keys()) - known


def _dense(theirs: str, ours: str, inputs: int = 1, outputs: int = 1) -> Iterator[Row]:
    yield Row(f"{theirs}.weight", f"{ours}/kernel", inputs, outputs)
    yield Row(f"{theirs}.bias", f"{ours}/bias", 0, outputs)


def _norm(theirs: str, ours: str) -> Iterator[Row]:
    yield Row(f"{theirs}.weight", f"{ours}/scale")
    yield Row(f"{theirs}.bias", f"{ours}/bias")


def _conv_norm(conv: str, norm: str, ours: str, number: str = "") -> Iterator[Row]:
    """number: ends our names, of which a block has several."""
    yield Row(f"{conv}.weight", f"{ours}/conv{number}/kernel", 1, 1)
    yield from _norm(norm, ours := f"{ours}/norm{number}")
    yield Row(f"{norm}.running_mean", f"{ours}/mean")
    yield Row(f"{norm}.running_var", f"{ours}/var")
    yield Row(f"{norm}.num_batches_tracked", f"{ours}/mean", kind="unread")


def _transformers(start: str) -> Iterator[Row]:
    """start: of all names but the head's."""
    layer = f"{start}encoder.layer.*"
    yield Row(f"{start}embeddings.cls_token", "token")
    yield Row(f"{start}embeddings.position_embeddings", "positions", kind="positions")
    yield from _dense(f"{start}embeddings.patch_embeddings.projection", "patches")
    yield from _norm(f"{layer}.layernorm_before", "layers/norms/attention")
    yield from _dense(f"{layer}.attention.attention.query", QUERY, outputs=2)
    yield from _dense(f"{layer}.attention.attention.key", KEY, outputs=2)
    yield from _dense(f"{layer}.attention.attention.value", VALUE, outputs=2)
    yield from _dense(f"{layer}.attention.output.dense", "layers/attention/out", inputs=2)
    yield from _norm(f"{layer}.layernorm_after", "layers/norms/dense")
    yield from _dense(f"{layer}.intermediate.dense", "layers/up")
    yield from _dense(f"{layer}.output.dense", "layers/down")
    yield from _norm(f"{start}layernorm", "norm")
    yield from _dense("classifier", "head")


QUERY, KEY, VALUE = (f"layers/attention/{name}" for name in ("query", "key", "value"))
_TIMM = (
    Row("pos_embed", "positions", kind="positions"),
    *_dense("patch_embed.proj", "patches"),
    *_norm("blocks.*.norm1", "layers/norms/attention"),
    *_dense("blocks.*.attn.qkv", QUERY, outputs=2),
    *_dense("blocks.*.attn.qkv", KEY, outputs=2),
    *_dense("blocks.*.attn.qkv", VALUE, outputs=2),
    *_dense("blocks.*.attn.proj", "layers/attention/out", inputs=2),
    *_norm("blocks.*.norm2", "layers/norms/dense"),
    *_dense("blocks.*.mlp.fc1", "layers/up"),
    *_dense("blocks.*.mlp.fc2", "layers/down"),
    *_dense("head", "head"),
)
_TOKEN, _NORM = Row("cls_token", "token"), (*_norm("norm", "norm"),)
_AVG = _norm("fc_norm", "pooled_norm")
_POOLER = (Row(f"pooler.dense.{name}", "norm/bias", kind="unread") for name in ("weight", "bias"))
_RESNET = (
    *_conv_norm("conv1", "bn1", "stem"),
    *_conv_norm("layer*.*.conv*", "layer*.*.bn*", "stages/*/*", "s/*"),
    *_conv_norm("layer*.*.downsample.0", "layer*.*.downsample.1", "stages/*/*/shortcut"),
    *_dense("fc", "head"),
)
MAPPINGS = (
    WeightMapping("ViT of timm without a class token", (*_TIMM, *_NORM), ("timm",)),
    WeightMapping("ViT of timm", (_TOKEN, *_TIMM, *_NORM), ("timm",)),
    WeightMapping(
        "ViT of timm with global_pool='avg', vit=timm_avg", (_TOKEN, *_TIMM, *_AVG), ("timm",)
    ),
    WeightMapping("ViT of transformers", (*_transformers("vit."),), ("transformers",)),
    WeightMapping("ViT of transformers without a head", (*_transformers(""), *_POOLER)),
    WeightMapping("ResNet of timm and torchvision", _RESNET, ("timm", "torchvision")),
)
"""The layouts that are recognized."""
