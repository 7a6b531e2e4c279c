"""Small weights as timm, transformers and torchvision save them, and the logits of their models.

    python tests/making/published/references.py

writes the files in this directory. It needs these three libraries, which infeed and its tests do without; the files
are made once and kept. With directories as arguments, each of which has such files as infeed exports them, it loads
these by the libraries instead, strictly, and compares logits.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet
from transformers import ViTConfig, ViTForImageClassification

HERE = Path(__file__).parent
CLASSES = 5
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
INCEPTION = ((0.5,) * 3, (0.5,) * 3)
NARROWER = 16


class Narrow(ResNet):
    """A ResNet with fewer channels."""

    def __init__(self, block, layers):
        super().__init__(block, layers, CLASSES)
        stem = 64 // NARROWER
        self.conv1 = torch.nn.Conv2d(3, stem, 7, 2, 3, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(stem)
        self.fc = torch.nn.Linear(512 // NARROWER * block.expansion, CLASSES)

    def _make_layer(self, block, planes, *args, **kwargs):
        self.inplanes = 64 // NARROWER if planes == 64 else self.inplanes
        return super()._make_layer(block, planes // NARROWER, *args, **kwargs)


def timm_vit(size=32, **options):
    return VisionTransformer(
        size, 4, num_classes=CLASSES, embed_dim=24, depth=2, num_heads=3, **options
    )


def transformers_config():
    sizes = {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 96,
    }
    return ViTConfig(**sizes, image_size=32, patch_size=4, num_labels=CLASSES)


MODELS = {
    "timm_vit": timm_vit,
    "timm_avg_vit": lambda: timm_vit(global_pool="avg"),
    "transformers_vit": lambda: ViTForImageClassification(transformers_config()),
    "resnet_basic": lambda: Narrow(BasicBlock, [1, 1, 1, 1]),
    "resnet_bottleneck": lambda: Narrow(Bottleneck, [1, 1, 1, 1]),
}


def randomize(model):
    """Gives every parameter and statistic, except counts, values with which logits depend on it."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                scale = 0.3 if value.ndim < 2 else min(0.5, (value[0].numel()) ** -0.5)
                around = 1.0 if value.ndim == 1 and name.endswith(("weight", "var")) else 0.0
                noise = torch.randn(value.shape, generator=generator) * scale
                value.copy_((around + noise).abs() if name.endswith("var") else around + noise)
            else:
                value.zero_()


def logits(model, name, size):
    pixels = np.random.default_rng(size).integers(0, 256, (3, size, size, 3), np.uint8)
    mean, std = IMAGENET if name.startswith("resnet") else INCEPTION
    images = torch.tensor((pixels / 255.0 - mean) / std, dtype=torch.float32).permute(0, 3, 1, 2)
    with torch.no_grad():
        out = model.eval()(images.contiguous())
    return getattr(out, "logits", out)


def make():
    references = {}
    for name, make_model in MODELS.items():
        model = make_model()
        randomize(model)
        if name == "transformers_vit":
            model.save_pretrained(HERE / name)
            (HERE / name / "model.safetensors").rename(HERE / f"{name}.safetensors")
            for file in (HERE / name).iterdir():
                file.unlink()
            (HERE / name).rmdir()
        else:
            save_file(model.state_dict(), HERE / f"{name}.safetensors")
        references[f"{name}_32"] = logits(model, name, 32)
        if name == "timm_vit":
            larger = timm_vit(48)
            larger.load_state_dict(checkpoint_filter_fn(model.state_dict(), larger))
            references[f"{name}_48"] = logits(larger, name, 48)
    save_file(references, HERE / "logits.safetensors")


def check(directory):
    references = load_file(HERE / "logits.safetensors")
    for name, make_model in MODELS.items():
        path = directory / f"{name}.safetensors"
        if name == "transformers_vit":
            folder = directory / name
            transformers_config().save_pretrained(folder)
            (folder / "model.safetensors").write_bytes(path.read_bytes())
            model, info = ViTForImageClassification.from_pretrained(
                folder, output_loading_info=True
            )
            found = {
                key: sorted(value) for key, value in info.items() if not isinstance(value, str)
            }
            assert not any(found.values()), found
            print(name, "from_pretrained:", json.dumps(found))
        else:
            model = make_model()
            print(
                name,
                "load_state_dict(strict=True):",
                model.load_state_dict(load_file(path), strict=True),
            )
        difference = (logits(model, name, 32) - references[f"{name}_32"]).abs().max().item()
        assert difference < 1e-5, difference
        print(name, "largest difference of logits:", difference)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        check(Path(argument))
    if not sys.argv[1:]:
        make()
