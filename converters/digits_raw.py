"""python -m converters.digits_raw OUT: real handwritten digits as raw data in the original ImageNet
layout.

Writes scikit-learn's 1,797 digits (part of its wheel: nothing is downloaded) as small JPEGs into a
train tar of class tars and a validation tar, with their label files. For demos and tests of
imagenet_to_gcs."""

if __name__ == "__main__":
    from pipeline.console.interrupts import ctrl_c_exits

    ctrl_c_exits()  # before the imports: they take seconds

import hashlib
import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.progress import track

from beam_jobs.launch import exit_with
from converters.imagenet.converter import VALIDATION_LABELS
from converters.imagenet.layouts import TRAIN_TAR, VALIDATION_TAR
from pipeline.console.console import Console, say
from pipeline.console.parser import Parser
from pipeline.errors import InfeedError, OptionError
from pipeline.packages import how_to_install
from pipeline.raw.jpeg import Jpeg
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import write_file

EXAMPLES = ("raw", "raw_1 --seed=1")
IMAGE_SIDE = 32  # pixels; the originals are 8x8
LABEL_FILE = "synsets.txt"
SYNSETS = tuple(f"n{digit:08d}" for digit in range(10))
_VALIDATION_PERCENT = 20


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the raw dataset. Raises InfeedError."""
    parser = Parser("converters.digits_raw", __doc__, EXAMPLES, ("converters.imagenet_to_gcs",))
    parser.add_argument("out", type=Path, help="directory for the tars and label files")
    parser.add_argument(
        "--seed", type=int, default=0, help="determines the validation images (default: 0)"
    )
    args = parser.parse_args(argv)
    counts = write_raw(args.out, args.seed)
    say(
        Console(),
        f"{counts['train']} train and {counts['validation']} validation images -> {args.out}",
    )


def write_raw(out: Path, seed: int = 0) -> Mapping[str, int]:
    """Writes the tars and label files, always the same bytes. Returns the number of images by
    split."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as e:
        raise InfeedError(
            f"the digits are part of scikit-learn. Install it: {how_to_install('digits')}."
        ) from e
    digits: Any = load_digits()
    train: dict[str, dict[str, bytes]] = {synset: {} for synset in SYNSETS}
    validation: dict[str, bytes] = {}
    labels: list[str] = []
    pairs = list(zip(digits.images, digits.target, strict=True))
    for row, (pixels, digit) in enumerate(track(pairs, description="digits -> JPEG")):
        if _is_validation(row, seed):
            labels.append(SYNSETS[digit])
            validation[f"ILSVRC2012_val_{len(labels):08d}.JPEG"] = _jpeg(pixels)
        else:
            train[SYNSETS[digit]][f"{SYNSETS[digit]}_{row}.JPEG"] = _jpeg(pixels)
    files = {
        TRAIN_TAR: _tar({f"{synset}.tar": _tar(images) for synset, images in train.items()}),
        VALIDATION_TAR: _tar(validation),
        VALIDATION_LABELS: "".join(f"{label}\n" for label in labels).encode(),
        LABEL_FILE: "".join(f"{synset}\n" for synset in SYNSETS).encode(),
    }
    for name, data in files.items():  # the names are those of ImageNet itself
        path = out / name
        if path.exists() and (path.stat().st_size != len(data) or path.read_bytes() != data):
            raise OptionError(
                f"{path} exists and has other contents. Give another directory, or move the file."
            )
    # with a new time, raw data have changed
    for name, data in files.items():
        if not (out / name).exists():
            write_file(open_storage(str(out)), str(out / name), data)
    return {"train": len(pairs) - len(labels), "validation": len(labels)}


def _is_validation(row: int, seed: int) -> bool:
    """Whether a hash of the row number says so: the last rows are by other writers, so a split by
    position would be unfair."""
    digest = hashlib.blake2b(f"{seed} {row}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 100 < _VALIDATION_PERCENT


def _jpeg(pixels: np.ndarray) -> bytes:
    """A grey JPEG with sides of IMAGE_SIDE from 8x8 values in 0..16."""
    image = Image.fromarray((pixels * 255 / 16).round().astype(np.uint8))
    return Jpeg.of(image.resize((IMAGE_SIDE, IMAGE_SIDE), Image.Resampling.BICUBIC), 95).data


def _tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


if __name__ == "__main__":
    exit_with(main)
