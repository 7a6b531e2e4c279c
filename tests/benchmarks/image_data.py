"""Photographs of ImageNet's sizes, cut out of large real ones: what bench_images decodes.

    apt-get download mate-backgrounds plasma-workspace-wallpapers
    for package in *.deb; do dpkg -x "$package" PHOTOS; done
    python -m tests.benchmarks.image_data PHOTOS DIR

Writes 320 JPEGs, 110 KB in the mean, to DIR: NNNN.jpg with the label NNNN % 23, the photograph that it was cut from."""

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

__all__ = ["COUNT", "label_of", "write_images"]

COUNT, CLASSES = 320, 23
# Debian's, which are photographs; the other wallpapers are drawn.
_NATURE = "Aqua Blinds Dune FreshFlower Garden GreenMeadow LadyBird RainDrops Storm TwoWings Wood YellowFlower"
_PLASMA = "BytheWater ColdRipple ColorfulCups DarkestHour EveningGlow FallenLeaf Grey Kite OneStandsOut Path summer_1am"
# As often as in ILSVRC2012: mostly 500 pixels wide, some upright, a few of them large. Width, height, share.
_SIZES = (
    (500, 375, 0.48),
    (500, 333, 0.18),
    (375, 500, 0.13),
    (333, 500, 0.06),
    (500, 500, 0.05),
    (640, 480, 0.05),
    (1024, 768, 0.03),
    (1600, 1200, 0.02),
)
_SHARE_444 = 0.15


def photographs(directory: Path) -> list[Path]:
    """The originals, 23 of them, under the directory in which the packages were unpacked."""
    share = directory / "usr/share"
    found = [share / f"backgrounds/mate/nature/{name}.jpg" for name in _NATURE.split()]
    found += [share / f"wallpapers/{name}/contents/images/2560x1600.jpg" for name in _PLASMA.split()]
    if missing := [str(path) for path in found if not path.exists()]:
        sys.exit(f"{len(missing)} photographs are missing, such as {missing[0]}. See --help for their packages.")
    return found


def label_of(number: int) -> int:
    """Of the number-th image: 0..22."""
    return number % CLASSES


def write_images(photos: Path, directory: Path) -> None:
    """Writes the JPEGs, the same ones every time with one version of Pillow."""
    directory.mkdir(parents=True, exist_ok=True)
    originals = [Image.open(path).convert("RGB") for path in photographs(photos)]
    random = np.random.default_rng(0)
    sizes = random.choice(len(_SIZES), COUNT, p=[share for _, _, share in _SIZES])
    for number, size in enumerate(sizes.tolist()):
        data = _cut(random, originals[label_of(number)], _SIZES[size][:2])
        (directory / f"{number:04d}.jpg").write_bytes(data)


def _cut(random: np.random.Generator, original: Image.Image, size: Sequence[int]) -> bytes:
    width, height = size
    most = min(original.width / width, original.height / height)
    scale = random.uniform(min(1.0, most), min(2.0, most))
    w, h = int(width * scale), int(height * scale)
    x, y = random.integers(original.width - w + 1), random.integers(original.height - h + 1)
    cut = original.resize((width, height), Image.Resampling.BICUBIC, (x, y, x + w, y + h))
    grain = random.normal(0, random.uniform(0, 13.5), (height, width, 1))  # most photographs of that time have some
    pixels = (np.asarray(cut) + grain).round().clip(0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    subsampling = 0 if random.random() < _SHARE_444 else 2
    Image.fromarray(pixels).save(buffer, "JPEG", quality=int(random.integers(88, 97)), subsampling=subsampling)
    return buffer.getvalue()


def main() -> None:
    """Writes them, and says what they are."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    write_images(Path(sys.argv[1]), Path(sys.argv[2]))
    sizes = np.array([path.stat().st_size for path in Path(sys.argv[2]).glob("*.jpg")]) / 1000
    print(f"{len(sizes)} images: {sizes.mean():.0f} KB in the mean, from {sizes.min():.0f} to {sizes.max():.0f}")


if __name__ == "__main__":
    main()
