"""All ops: frozen dataclasses. train_dataset takes a list of them; your own must implement `Op`.

`Features` is a dict with one array per key, `Specs` a mapping from keys to
`pipeline.datasets.ArraySpec`; `Rng` draws an op's random numbers."""

from pipeline.decoding.feature_ops import Cast, Drop, Keep, Rename
from pipeline.decoding.image_ops import DecodeJpeg, DecodePng, DecodeStored
from pipeline.decoding.label_ops import MultiHot, OneHot, RequireLabel
from pipeline.decoding.op import Features, Op, Specs
from pipeline.decoding.photo_ops import DecodeCentralCrop, DecodeRandomResizedCrop, DecodeResize
from pipeline.decoding.pixel_ops import (
    CentralCrop,
    GreyToRgb,
    RandomCrop,
    RandomFlip,
    RandomShift,
    Resize,
    TrivialAugmentWide,
)
from pipeline.decoding.rng import Rng

__all__ = [
    "Cast",
    "CentralCrop",
    "DecodeCentralCrop",
    "DecodeJpeg",
    "DecodePng",
    "DecodeRandomResizedCrop",
    "DecodeResize",
    "DecodeStored",
    "Drop",
    "Features",
    "GreyToRgb",
    "Keep",
    "MultiHot",
    "OneHot",
    "Op",
    "RandomCrop",
    "RandomFlip",
    "RandomShift",
    "Rename",
    "RequireLabel",
    "Resize",
    "Rng",
    "Specs",
    "TrivialAugmentWide",
]
