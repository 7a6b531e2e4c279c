"""Images of random pixels, and tars of files."""

import io
import tarfile

import numpy as np
from PIL import Image


def make_tar(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def make_jpeg(seed=0, height=12, width=16, mode="RGB"):
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, len(mode)), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels.squeeze(), mode).save(buffer, "PNG" if mode == "RGBA" else "JPEG")
    return buffer.getvalue()


def make_image(seed, form, mode="RGB", size=(16, 12), **options):
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], len(mode)), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels.squeeze(), mode).save(buffer, form, **options)
    return buffer.getvalue()
