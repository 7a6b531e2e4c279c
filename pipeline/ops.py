"""The ops there are: frozen dataclasses. Recipes take a list of them; `Op` is what one of your own must be."""

from pipeline.decoding.image_ops import DecodeJpeg, DecodePng, RandomShift
from pipeline.decoding.label_ops import MultiHot
from pipeline.decoding.op import Features, Op, Specs
from pipeline.decoding.photo_ops import DecodeCentralCrop, DecodeRandomResizedCrop, DecodeResize

__all__ = [
    "DecodeCentralCrop",
    "DecodeJpeg",
    "DecodePng",
    "DecodeRandomResizedCrop",
    "DecodeResize",
    "Features",
    "MultiHot",
    "Op",
    "RandomShift",
    "Specs",
]
