"""TFRecord files, and a dataset that TFDS prepared."""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pipeline.shards.example import encode_example
from pipeline.shards.frames import frame
from pipeline.shards.schema import Feature, Schema
from raw_data.images import make_jpeg

EXAMPLE = Schema(
    "example",
    {
        "image": Feature("bytes"),
        "label": Feature("int64"),
        "name": Feature("bytes"),
        "w": Feature("float32", (2,)),
    },
)


def write_tfrecords(directory: Path, pack=bytes):
    """Examples in files of train (8 records each, one damaged, the last file cut) and val. pack: compresses a file."""
    directory.mkdir(parents=True, exist_ok=True)
    for split, files in (("train", 3), ("val", 2)):
        for number in range(files):
            frames = []
            for i in range(10 * number, 10 * number + 8):
                values = {
                    "image": make_jpeg(i),
                    "label": i % 3,
                    "name": f"{split} {i}".encode(),
                    "w": [i, 0.5],
                }
                frames.append(frame(encode_example(EXAMPLE, values)))
            if number == 0:
                frames[5] = frames[5][:-5] + bytes([frames[5][-5] ^ 1]) + frames[5][-4:]
            data = b"".join(frames)
            name = f"ours-{split}.tfrecord-{number:05d}-of-{files:05d}"
            (directory / name).write_bytes(
                pack(data[:-3] if (split, number) == ("train", 2) else data)
            )


def prepare_tfds(data_dir: Path):
    """A dataset "tiny" of TFDS with all kinds of features, as TFDS writes it; its directory."""
    import tensorflow_datasets as tfds

    features = {
        "image": tfds.features.Image(shape=(None, None, 3)),
        "label": tfds.features.ClassLabel(names=["cat", "grey eel", "dog"]),
        "text": tfds.features.Text(),
        "vec": tfds.features.Tensor(shape=(2, 3), dtype=np.float32),
        "flag": np.bool_,
        "boxes": tfds.features.Sequence(
            {"box": tfds.features.BBoxFeature(), "at": tfds.features.ClassLabel(num_classes=2)}
        ),
        "nested": {
            "ids": tfds.features.Sequence(np.int64),
            "rag": tfds.features.Sequence(tfds.features.Sequence(np.int32)),
        },
    }

    def example(i):
        rng = np.random.default_rng(i)
        boxes = [{"box": tfds.features.BBox(0.1, 0.2, 0.5, 0.6), "at": j % 2} for j in range(i % 3)]
        return {
            "image": rng.integers(0, 255, (5 + i, 4, 3), np.uint8),
            "label": i % 3,
            "text": f"text {i} ä",
            "vec": rng.random((2, 3)).astype(np.float32),
            "flag": bool(i % 2),
            "boxes": boxes,
            "nested": {"ids": list(range(i % 4)), "rag": [[1] * (j + 1) for j in range(i % 3)]},
        }

    class Tiny(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.2.0")

        def _info(self):
            of_features = tfds.features.FeaturesDict(features)
            return tfds.core.DatasetInfo(
                builder=self, features=of_features, supervised_keys=("image", "label")
            )

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(23), "validation": self._generate_examples(6)}

        def _generate_examples(self, count):
            return ((i, example(i)) for i in range(count))

    builder = Tiny(data_dir=str(data_dir))
    builder.download_and_prepare()
    return Path(builder.data_dir)


def write_damaged_tfds(data_dir: Path):
    for path in prepare_tfds(data_dir).glob("*tfrecord*"):
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(data)


def write_tfds_by_hand(
    directory: Path, files: Sequence[Sequence[bytes]], features: Mapping[str, str]
):
    """What TFDS would have prepared: Examples of scalar features, name -> dtype, in files of one split, train."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, payloads in enumerate(files):
        name = f"by_hand-train.tfrecord-{number:05d}-of-{len(files):05d}"
        (directory / name).write_bytes(b"".join(map(frame, payloads)))
    core = "tensorflow_datasets.core.features"
    scalars = {
        key: {
            "pythonClassName": f"{core}.scalar.Scalar",
            "tensor": {"dtype": dtype, "encoding": "none", "shape": {}},
        }
        for key, dtype in features.items()
    }
    described = {
        "pythonClassName": f"{core}.features_dict.FeaturesDict",
        "featuresDict": {"features": scalars},
    }
    split = {
        "name": "train",
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "shardLengths": [str(len(payloads)) for payloads in files],
        "numBytes": str(sum(map(len, itertools.chain(*files)))),
    }
    info = {"name": "by_hand", "version": "1.0.0", "fileFormat": "tfrecord", "splits": [split]}
    (directory / "features.json").write_text(json.dumps(described))
    (directory / "dataset_info.json").write_text(json.dumps(info))
