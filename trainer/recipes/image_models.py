"""The models of the recipes for images of any size: their flags, and how they follow what describes
published weights.

JAX is imported where it is used, so that --help and the checks do not need it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from pipeline.checks import check_number, check_positive_int
from pipeline.errors import OptionError
from pipeline.logs import logger
from trainer.config import partition_rules
from trainer.recipe import DataRecipe, OptimizerConfig
from trainer.recipes.image_data import ImageData, image_data
from trainer.recipes.labelled_images import fitting_span

if TYPE_CHECKING:
    from trainer.checkpointing.weights_description import Described
    from trainer.models.pixels import Statistics
    from trainer.models.resnet import ResNet
    from trainer.models.small import SmallCnn
    from trainer.models.vit import Vit

ModelName = Literal["cnn", "resnet18", "resnet50", "vit_ti16", "vit_s16", "vit_b16"]
Variant = Literal["timm", "timm_avg", "transformers", "big_vision"]
OF_VITS = ("vit", "patch", "remat")
# Biases and norms of stacked layers have two dimensions, positions three: all but "kernel".
ALL_BUT_KERNELS = ("*[!l]",)

log = logger("trainer")


@dataclass(frozen=True, kw_only=True)
class ImageModel(DataRecipe):
    """A CNN, a ResNet or a Vision Transformer, by flags."""

    found_fields = ("size", "normalization")

    image_key: str | None = None
    """The feature with the encoded image. Default: the only image feature."""
    label_key: str | None = None
    """The feature with the integer label. Default: that of the class names, or the only integer."""
    num_classes: int | None = None
    """Number of classes. Default: the number of class names."""
    size: int = 64
    """Width and height of the images, in pixels. Default with --init-from: what the weights'
    config.json or preprocessor_config.json states; else 64."""
    model: ModelName = "cnn"
    """cnn: a few convolutions. resnet18, resnet50: residual networks with batch norm, for
    photographs of about 224 pixels; --init-from begins with a trained one. vit_ti16, vit_s16,
    vit_b16: Vision Transformers, for the same; without --init-from, they need a million images."""
    vit: Variant = "timm"
    """Whose Vision Transformers to follow, for --init-from with their weights. timm: a class token,
    learned positions, exact GELU. timm_avg: the same, but the head sees the mean of all patches, as
    with timm's global_pool="avg". transformers: like timm, with an epsilon of 1e-12 in norms.
    big_vision: the mean of all patches, fixed positions, GELU by tanh."""
    patch: int = 16
    """Width and height of a Vision Transformer's patches, in pixels; size is a multiple of it."""
    remat: Literal["none", "dots", "full"] = "none"
    """What a Vision Transformer's backward pass computes again rather than keeps: nothing; all but
    the results of products with parameters; all of a layer."""
    normalization: Literal["imagenet", "inception", "unit"] | None = None
    """What the model makes of pixels. imagenet: subtracts the means of ImageNet's channels and
    divides by their deviations. inception: -1..1. unit: 0..1. Default: what the description of the
    weights states, as for --size; else imagenet for residual networks, inception for others."""
    bn_span: int | None = None
    """Rows over which batch norms take their statistics in training; 32 to 256 are usual. It has to
    divide the batch, or the microbatch with --accumulate. Default: all of them, over all
    devices."""
    widths: tuple[int, ...] = (32, 64, 128, 256)
    """Channels of the CNN's convolutions; each one halves the image."""
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=2e-3, weight_decay=0.05)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("num_classes", self.num_classes, at_least=2)
        check_number("size", self.size, at_least=8, more=" pixels")
        if self.model == "cnn" and self.size >> len(self.widths) < 1:
            raise OptionError(
                f"size={self.size} with {len(self.widths)} widths: each width halves the image. "
                "Give a larger size or fewer widths."
            )
        if not self.widths or min(self.widths) < 1:
            raise OptionError(f"widths={self.widths} must be one or more numbers above 0.")
        if self.model.startswith("vit"):
            self._check_vit()
        else:
            for name in OF_VITS:
                if (value := getattr(self, name)) != getattr(type(self), name):
                    raise OptionError(
                        f"{name}={value} with model={self.model}: only Vision Transformers have "
                        "it. Leave it out."
                    )
        if self.bn_span is None or self.mode != "train":
            return
        if not self.model.startswith("resnet"):
            raise OptionError(
                f"bn_span={self.bn_span} with model={self.model}, which has no batch norm. Leave "
                "it out."
            )
        object.__setattr__(self, "bn_span", fitting_span(self.bn_span, self.trainer, self.tiny))

    def _check_vit(self) -> None:
        check_positive_int("patch", self.patch)
        if self.size % self.patch:
            nearest = max(1, round(self.size / self.patch)) * self.patch
            raise OptionError(
                f"size={self.size} is not a multiple of patch={self.patch}, as a Vision "
                f"Transformer needs. Nearest: {nearest}."
            )
        if not self.optimizer.no_decay:
            optimizer = replace(self.optimizer, no_decay=ALL_BUT_KERNELS)
            object.__setattr__(self, "optimizer", optimizer)

    @cached_property
    def image_data(self) -> ImageData:
        """The data by the flags, or else by their description."""
        return image_data(self, self.description)

    @property
    def target_key(self) -> str | None:
        """See DataRecipe."""
        return self.label_key or super().target_key

    def found(self) -> Mapping[str, Any]:
        """Size and normalization of the images as the weights' own description states them, but for
        those that a subclass sets."""
        if not self.warm_start.init_from:
            return {}
        stated = self._stated(self.warm_start.init_from)
        values = {"size": stated.size, "normalization": stated.normalization}
        return {
            name: value
            for name, value in values.items()
            if value and getattr(self, name) == getattr(ImageModel, name)
        }

    def check(self) -> None:
        """Checks like DataRecipe.check. Raises OptionError if the features to read are ambiguous or
        missing, and for weights of images that are normalized otherwise or of other heads."""
        super().check()
        _ = self.image_data
        if not ((init_from := self.warm_start.init_from) and self.begins):
            return
        from trainer.models.vit import VITS

        stated, vit = self._stated(init_from), VITS.get(self.model)
        stated.check(self._normalized_as, vit and vit.heads)
        own = f"the model takes {self.size} pixels, normalized as {self._normalized_as}"
        log.info("init_from %s: %s; %s", init_from, stated, own)

    def _stated(self, init_from: str) -> "Described":
        from trainer.checkpointing.weights_description import described
        from trainer.models.pixels import STATISTICS

        return described(init_from, STATISTICS)

    @property
    def _normalized_as(self) -> str:
        usual = "imagenet" if self.model.startswith("resnet") else "inception"
        return self.normalization or usual

    @property
    def statistics(self) -> "Statistics":
        """The means and deviations that normalize images."""
        from trainer.models.pixels import STATISTICS

        return STATISTICS[self._normalized_as]

    def network(self, rngs: Any) -> "SmallCnn | ResNet | Vit":
        """The model that --model names."""
        from trainer.models.resnet import RESNETS, ResNet
        from trainer.models.small import SmallCnn
        from trainer.models.vit import VARIANTS, VITS, Vit

        data, size, statistics = self.image_data, self.size, self.statistics
        if self.model == "cnn":
            shape = (size, size, data.channels)
            return SmallCnn(data.num_classes, shape, rngs, self.widths, statistics=statistics)
        options: Any = {"channels": data.channels, "statistics": statistics}
        if self.model in RESNETS:
            shape = RESNETS[self.model]
            return ResNet(shape, data.num_classes, rngs, bn_span=self.bn_span, **options)
        shape = replace(VITS[self.model], patch=self.patch, **VARIANTS[self.vit])
        rules = partition_rules(self.trainer.partition)
        return Vit(shape, data.num_classes, size, rngs, rules=rules, remat=self.remat, **options)
