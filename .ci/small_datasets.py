"""MNIST's and CIFAR-10's files in small, of scikit-learn's digits: what docs/sources.md's commands
convert."""

import gzip
import io
import struct
import sys
import tarfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

out = Path(sys.argv[1])
digits = load_digits()
pixels = (digits.images * 255 / 16).round().astype(np.uint8)
labels = digits.target.astype(np.uint8)

(out / "mnist").mkdir()
for name, rows in (("train", slice(0, 1500)), ("t10k", slice(1500, None))):
    images = pixels[rows].repeat(3, 1).repeat(3, 2)
    for kind, data in (("images-idx3", images), ("labels-idx1", labels[rows])):
        header = struct.pack(f">{1 + data.ndim}I", 0x800 + data.ndim, *data.shape)
        (out / f"mnist/{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(header + data.tobytes()))

(out / "cifar").mkdir()
colour = pixels.repeat(4, 1).repeat(4, 2)[:, None].repeat(3, 1).reshape(len(pixels), -1)
records = np.concatenate([labels[:, None], colour], 1)
files = {f"data_batch_{i + 1}.bin": records[i * 300 : (i + 1) * 300].tobytes() for i in range(5)}
files |= {
    "test_batch.bin": records[1500:].tobytes(),
    "batches.meta.txt": "\n".join(map(str, range(10))).encode(),
}
with tarfile.open(out / "cifar/cifar-10-binary.tar.gz", "w:gz") as tar:
    for name, data in files.items():
        info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
