"""A ResNet-18 with the names and shapes of timm's and torchvision's: python .ci/published_resnet.py
FILE.safetensors.

docs/fine-tuning.md downloads a trained one; this one has random kernels of the usual size."""

import sys
from collections.abc import Iterator

import numpy as np
from safetensors.numpy import save_file


def kernel(name: str, *shape: int) -> Iterator[tuple[str, np.ndarray]]:
    """In PyTorch's layout: [out, in, height, width]."""
    yield (
        f"{name}.weight",
        np.random.default_rng(0).normal(0, (2 / np.prod(shape[1:])) ** 0.5, shape),
    )


def norm(name: str, width: int) -> Iterator[tuple[str, np.ndarray]]:
    """Also the number of batches that it has seen, as PyTorch counts them."""
    values = {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1}
    yield from ((f"{name}.{part}", np.full(width, value)) for part, value in values.items())
    yield f"{name}.num_batches_tracked", np.array(1)


def arrays() -> Iterator[tuple[str, np.ndarray]]:
    """All of them, in the order of the layers."""
    yield from kernel("conv1", 64, 3, 7, 7)
    yield from norm("bn1", 64)
    before = 64
    for layer, width in enumerate((64, 128, 256, 512), 1):
        for block in (0, 1):
            name = f"layer{layer}.{block}"
            for number, inputs in ((1, before), (2, width)):
                yield from kernel(f"{name}.conv{number}", width, inputs, 3, 3)
                yield from norm(f"{name}.bn{number}", width)
            if before != width:
                yield from kernel(f"{name}.downsample.0", width, before, 1, 1)
                yield from norm(f"{name}.downsample.1", width)
            before = width
    yield from kernel("fc", 1000, 512)
    yield "fc.bias", np.zeros(1000)


if __name__ == "__main__":
    save_file(
        {name: array.astype(np.float32) if array.ndim else array for name, array in arrays()},
        sys.argv[1],
    )
