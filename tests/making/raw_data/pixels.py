"""MNIST's and CIFAR's files."""

import gzip
import struct
from pathlib import Path

import numpy as np

from converters import cifar_to_gcs, idx_to_gcs
from raw_data.images import make_tar


class RawMnist:
    """A few images of random pixels as idx files, the training ones compressed; one label is too large."""

    def __init__(self, directory: Path, train=24, test=9, size=(5, 4)):
        self.directory = directory
        rng = np.random.default_rng(0)
        self.images = {
            s: rng.integers(0, 256, (n, *size), np.uint8)
            for s, n in (("train", train), ("test", test))
        }
        self.labels = {
            split: (np.arange(len(images)) % 10).astype(np.uint8)
            for split, images in self.images.items()
        }
        self.labels["train"][3] = 10

    def write(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        for split, name in (("train", "train"), ("test", "t10k")):
            images, labels = self.images[split], self.labels[split]
            files = {
                f"{name}-images-idx3-ubyte": struct.pack(">4I", 0x803, *images.shape)
                + images.tobytes(),
                f"{name}-labels-idx1-ubyte": struct.pack(">2I", 0x801, len(labels))
                + labels.tobytes(),
            }
            for file, data in files.items():
                compressed = (
                    {f"{file}.gz": gzip.compress(data, mtime=0)}
                    if split == "train"
                    else {file: data}
                )
                for path, content in compressed.items():
                    (self.directory / path).write_bytes(content)
        (self.directory / "digits.txt").write_text("\n".join("0123456789") + "\n")
        return self

    def convert(self, out, *flags):
        """Runs the real command line in this process."""
        idx_to_gcs.main([f"--raw-data-dir={self.directory}", f"--gcs-output-path={out}", *flags])


class RawCifar:
    """CIFAR-10's or CIFAR-100's binary version with a few images of random pixels; one label is too large."""

    def __init__(self, directory: Path, coarse=False, images=6):
        self.directory, self.coarse = directory, coarse
        batches = (
            ["train.bin"] if coarse else [f"data_batch_{number}.bin" for number in range(1, 6)]
        )
        rng = np.random.default_rng(0)
        size = 3072 + 1 + coarse
        self.batches = {name: rng.integers(0, 256, (images, size), np.uint8) for name in batches}
        self.batches["test.bin" if coarse else "test_batch.bin"] = rng.integers(
            0, 256, (images, size), np.uint8
        )
        for records in self.batches.values():
            records[:, : 1 + coarse] %= 10
        self.batches[batches[0]][1, int(coarse)] = 100
        names = (
            {"fine_label_names.txt": 100, "coarse_label_names.txt": 20}
            if coarse
            else {"batches.meta.txt": 10}
        )
        self.names = {
            name: "".join(f"{name[:4]} {i}\n" for i in range(count)) + "\n"
            for name, count in names.items()
        }
        self.folder = "cifar-100-binary" if coarse else "cifar-10-batches-bin"

    @property
    def files(self):
        text = {name: names.encode() for name, names in self.names.items()}
        return {
            **{name: records.tobytes() for name, records in self.batches.items()},
            **text,
            "readme.html": b"<html>",
        }

    def write(self):
        """As the folder that the archive unpacks to."""
        (self.directory / self.folder).mkdir(parents=True, exist_ok=True)
        for name, data in self.files.items():
            (self.directory / self.folder / name).write_bytes(data)
        return self

    def write_archive(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        tar = make_tar({f"{self.folder}/{name}": data for name, data in self.files.items()})
        archive = "cifar-100-binary.tar.gz" if self.coarse else "cifar-10-binary.tar.gz"
        (self.directory / archive).write_bytes(gzip.compress(tar, 1, mtime=0))
        return self

    def convert(self, out, *flags):
        """Runs the real command line in this process."""
        cifar_to_gcs.main([f"--raw-data-dir={self.directory}", f"--gcs-output-path={out}", *flags])
