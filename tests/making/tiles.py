"""Labelled pictures without a download: photographs of Debian's packages, each cut into tiles that do not overlap."""

from collections.abc import Iterator
from pathlib import Path

from PIL import Image

TILE, HEIGHT = 128, 1024
# The packages' other wallpapers are drawn.
PATTERNS = (
    "usr/share/backgrounds/mate/nature/*.jpg",
    "usr/share/wallpapers/*/contents/images/2560x1600.jpg",
)


def tiles(packages: Path) -> Iterator[tuple[int, int, int, Image.Image]]:
    """(photograph, row, column, tile) of all photographs below a directory where packages were unpacked."""
    originals = [path for pattern in PATTERNS for path in sorted(packages.glob(pattern))]
    for number, path in enumerate(originals):
        with Image.open(path) as image:
            size = (round(image.width * HEIGHT / image.height), HEIGHT)
            pixels = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        for row in range(HEIGHT // TILE):
            for column in range(size[0] // TILE):
                x, y = column * TILE, row * TILE
                yield number, row, column, pixels.crop((x, y, x + TILE, y + TILE))
