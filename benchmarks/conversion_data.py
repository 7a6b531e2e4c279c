"""Photo-like JPEGs in ImageNet's original train tar, a tar of class tars: the raw data of bench_conversion.

The images differ in size, content and detail, decode as photos do, and are 110 KB in the mean, as ImageNet's are. A few
hundred are made; they stand in the tars under as many names as are wanted."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import simplejpeg
from PIL import Image

from converters.imagenet.layouts import TRAIN_TAR, VALIDATION_TAR, ilsvrc2012_synsets
from converters.raw.tars import members
from pipeline.storage.schemes import open_storage

__all__ = ["MEAN_BYTES", "photograph", "write_raw"]

MEAN_BYTES = 110_000
IMAGES_PER_CLASS = 1300  # as many as most classes of ImageNet have
_DIFFERENT = 300


def write_raw(directory: Path, total_bytes: int) -> None:
    """Writes the tar and images.json, which says where each image is in it; unless they are there."""
    path, listing, count = (
        directory / TRAIN_TAR,
        directory / "images.json",
        max(1, total_bytes // MEAN_BYTES),
    )
    if listing.exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    photos = [
        photograph(random, *random.integers(300, 520, 2).tolist())
        for _ in range(min(_DIFFERENT, count))
    ]
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, begin in enumerate(range(0, count, IMAGES_PER_CLASS)):
            synset = list(ilsvrc2012_synsets())[number]
            names = range(begin, min(begin + IMAGES_PER_CLASS, count))
            data = b"".join(_member(f"{synset}_{i}.JPEG", photos[i % len(photos)]) for i in names)
            info = tarfile.TarInfo(f"{synset}.tar")
            info.size = len(data) + tarfile.RECORDSIZE
            tar.addfile(info, io.BytesIO(data + bytes(tarfile.RECORDSIZE)))
    with tarfile.open(directory / VALIDATION_TAR, "w") as tar:  # TFDS wants one
        info = tarfile.TarInfo("ILSVRC2012_val_00000001.JPEG")
        info.size = len(photos[0])
        tar.addfile(info, io.BytesIO(photos[0]))
    listing.write_text(json.dumps(_images(path)))


def _images(path: Path) -> list[tuple[str, int, int, str, int]]:
    """(name, offset, size, synset, label) of each."""
    storage, uri = open_storage(str(path)), str(path)
    return [
        (image.name, image.offset, image.size, tar.name.removesuffix(".tar"), label)
        for label, tar in enumerate(members(storage, uri, 0, path.stat().st_size), start=1)
        for image in members(storage, uri, tar.offset, tar.size)
    ]


def _member(name: str, data: bytes) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    return info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def photograph(random: np.random.Generator, height: int, width: int) -> bytes:
    """A JPEG with what photographs have: smooth areas, edges, and grain of two sizes."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    angles, waves = random.uniform(0, 2 * np.pi, 3), random.uniform(20, 200, 3)
    planes = [
        128 + 90 * np.sin((x * np.cos(a) + y * np.sin(a)) / w)
        for a, w in zip(angles, waves, strict=True)
    ]
    image = np.stack(planes, axis=-1)
    image += random.normal(0, random.uniform(9, 21), (height, width, 1))
    coarse = random.normal(0, 25, (height // 8 + 1, width // 8 + 1)).astype(np.float32)
    image += np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))[
        ..., None
    ]
    pixels = np.ascontiguousarray(image.clip(0, 255).astype(np.uint8))
    return simplejpeg.encode_jpeg(pixels, quality=int(random.integers(88, 97)), colorspace="RGB")
