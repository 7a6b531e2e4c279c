"""Our models of the small weights in tests/making/published."""

from dataclasses import replace
from pathlib import Path

from trainer.models.pixels import STATISTICS
from trainer.models.resnet import BASIC, BOTTLENECK, ResNet, ResNetShape
from trainer.models.vit import Vit, VitShape

__all__ = ["FILES", "NARROW", "PUBLISHED", "VIT", "model_of"]

PUBLISHED = Path(__file__).parent / "published"
VIT = VitShape(2, 24, 3, patch=4)
NARROW = ResNetShape((1, 1, 1, 1), (4, 8, 16, 32))
FILES = {
    "timm_vit": VIT,
    "timm_avg_vit": replace(VIT, pooling="patches"),
    "transformers_vit": replace(VIT, epsilon=1e-12),
    "resnet_basic": replace(NARROW, block=BASIC),
    "resnet_bottleneck": replace(NARROW, block=BOTTLENECK),
}


def model_of(shape, rngs, size=32, classes=5):
    if isinstance(shape, VitShape):
        return Vit(shape, classes, size, rngs, statistics=STATISTICS["inception"])
    return ResNet(shape, classes, rngs)
