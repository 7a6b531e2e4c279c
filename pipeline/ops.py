"""The ops there are: frozen dataclasses. Recipes take a list of them; `Op` is what one of your own must be."""

from pipeline.decoding.image_ops import DecodeJpeg, DecodePng, RandomShift
from pipeline.decoding.label_ops import MultiHot
from pipeline.decoding.op import Features, Op, Specs

__all__ = ["DecodeJpeg", "DecodePng", "Features", "MultiHot", "Op", "RandomShift", "Specs"]
