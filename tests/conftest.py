"""Raw data and conversions that several packages' tests share: tiny, made here, converted by the real command."""

import contextlib
import gzip
import hashlib
import io
import json
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from fake_gcs.server import start
from PIL import Image

from converters import cifar_to_gcs, digits_raw, idx_to_gcs, image_folder_to_gcs, imagenet_to_gcs, table_to_gcs
from pipeline.shards import gcs_calls
from pipeline.shards.example import encode_example
from pipeline.shards.record import frame
from pipeline.shards.schema import Feature, Schema
from pipeline.shards.schemes import open_storage


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


class RawImagenet:
    """A directory in the original layout, of images that the test may spoil before it is written."""

    def __init__(self, directory: Path, train=(7, 5, 6), validation=4):
        self.directory = directory
        self.synsets = [f"n{number:08d}" for number in range(1, len(train) + 1)]
        self.train = {
            synset: {f"{synset}_{i}.JPEG": make_jpeg(seed=100 * c + i, height=8 + i) for i in range(count)}
            for c, (synset, count) in enumerate(zip(self.synsets, train, strict=True))
        }
        self.validation = {f"ILSVRC2012_val_{i:08d}.JPEG": make_jpeg(seed=1000 + i) for i in range(1, validation + 1)}
        self.validation_labels = [self.synsets[i % len(train)] for i in range(validation)]

    def write(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        tars = {f"{synset}.tar": make_tar(images) for synset, images in self.train.items()}
        (self.directory / "ILSVRC2012_img_train.tar").write_bytes(make_tar(tars))
        (self.directory / "ILSVRC2012_img_val.tar").write_bytes(make_tar(self.validation))
        return self.write_labels()

    def write_labels(self):
        (self.directory / "synset_labels.txt").write_text("\n".join(self.validation_labels) + "\n")
        (self.directory / "synsets.txt").write_text("\n".join(self.synsets) + "\n")
        return self

    def write_folders(self):
        """The same images as extracted folders, instead of tars."""
        for split, classes in (("train", self.train), ("validation", {".": self.validation})):
            for synset, images in classes.items():
                (self.directory / split / synset).mkdir(parents=True, exist_ok=True)
                for name, data in images.items():
                    (self.directory / split / synset / name).write_bytes(data)
        return self.write_labels()

    def convert(self, out, *flags):
        """Runs the real command line in this process."""
        labels = f"--label_file={self.directory}/synsets.txt"
        imagenet_to_gcs.main([f"--raw_data_dir={self.directory}", f"--gcs_output_path={out}", labels, *flags])


def make_image(seed, form, mode="RGB", size=(16, 12), **options):
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], len(mode)), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels.squeeze(), mode).save(buffer, form, **options)
    return buffer.getvalue()


class RawImageFolder:
    """Folders of images, one a class, of all kinds, with a file in each that is none, and a hidden one."""

    def __init__(self, directory: Path, classes=("cat", "dog", "grey eel"), images=8):
        self.directory = directory
        self.files = {name: self._folder(100 * number, images) for number, name in enumerate(classes)}

    @staticmethod
    def _folder(seed, images):
        kinds = [("JPEG", "RGB"), ("PNG", "RGBA"), ("WEBP", "RGB"), ("JPEG", "L"), ("PNG", "L"), ("JPEG", "RGB")]
        files = {".DS_Store": b"hidden", "notes.txt": b"not an image"}
        for i in range(images):
            form, mode = kinds[i % len(kinds)]
            files[f"{seed + i}.{form.lower()}"] = make_image(seed + i, form, mode, (16, 10 + i))
        return files

    def write(self, split=""):
        """As <split>/<class>/*, or <class>/* without one."""
        for name, files in self.files.items():
            folder = self.directory / split / name
            folder.mkdir(parents=True, exist_ok=True)
            for file, data in files.items():
                (folder / file).write_bytes(data)
        return self

    def convert(self, out, *flags):
        """Runs the real command line in this process."""
        image_folder_to_gcs.main([f"--raw_data_dir={self.directory}", f"--gcs_output_path={out}", *flags])


def imagenet_with_a_bad_image(directory):
    raw = RawImagenet(directory)
    raw.train["n00000001"]["n00000001_0.JPEG"] = b"not an image"
    raw.validation["ILSVRC2012_val_00000099.JPEG"] = make_jpeg()  # which has no label
    return raw


class RawMnist:
    """A few images of random pixels as idx files, the training ones compressed; one label is too large."""

    def __init__(self, directory: Path, train=24, test=9, size=(5, 4)):
        self.directory = directory
        rng = np.random.default_rng(0)
        self.images = {s: rng.integers(0, 256, (n, *size), np.uint8) for s, n in (("train", train), ("test", test))}
        self.labels = {split: (np.arange(len(images)) % 10).astype(np.uint8) for split, images in self.images.items()}
        self.labels["train"][3] = 10

    def write(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        for split, name in (("train", "train"), ("test", "t10k")):
            images, labels = self.images[split], self.labels[split]
            files = {
                f"{name}-images-idx3-ubyte": struct.pack(">4I", 0x803, *images.shape) + images.tobytes(),
                f"{name}-labels-idx1-ubyte": struct.pack(">2I", 0x801, len(labels)) + labels.tobytes(),
            }
            for file, data in files.items():
                compressed = {f"{file}.gz": gzip.compress(data, mtime=0)} if split == "train" else {file: data}
                for path, content in compressed.items():
                    (self.directory / path).write_bytes(content)
        (self.directory / "digits.txt").write_text("\n".join("0123456789") + "\n")
        return self

    def convert(self, out, *flags):
        """Runs the real command line in this process."""
        idx_to_gcs.main([f"--raw_data_dir={self.directory}", f"--gcs_output_path={out}", *flags])


class RawCifar:
    """CIFAR-10's or CIFAR-100's binary version with a few images of random pixels; one label is too large."""

    def __init__(self, directory: Path, coarse=False, images=6):
        self.directory, self.coarse = directory, coarse
        batches = ["train.bin"] if coarse else [f"data_batch_{number}.bin" for number in range(1, 6)]
        rng = np.random.default_rng(0)
        size = 3072 + 1 + coarse
        self.batches = {name: rng.integers(0, 256, (images, size), np.uint8) for name in batches}
        self.batches["test.bin" if coarse else "test_batch.bin"] = rng.integers(0, 256, (images, size), np.uint8)
        for records in self.batches.values():
            records[:, : 1 + coarse] %= 10
        self.batches[batches[0]][1, int(coarse)] = 100
        names = {"fine_label_names.txt": 100, "coarse_label_names.txt": 20} if coarse else {"batches.meta.txt": 10}
        self.names = {name: "".join(f"{name[:4]} {i}\n" for i in range(count)) + "\n" for name, count in names.items()}
        self.folder = "cifar-100-binary" if coarse else "cifar-10-batches-bin"

    @property
    def files(self):
        text = {name: names.encode() for name, names in self.names.items()}
        return {**{name: records.tobytes() for name, records in self.batches.items()}, **text, "readme.html": b"<html>"}

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
        cifar_to_gcs.main([f"--raw_data_dir={self.directory}", f"--gcs_output_path={out}", *flags])


EXAMPLE = Schema(
    "example",
    {"image": Feature("bytes"), "label": Feature("int64"), "name": Feature("bytes"), "w": Feature("float32", (2,))},
)


def write_tfrecords(directory: Path, pack=bytes):
    """Examples in files of train (8 records each, one damaged, the last file cut) and val. pack: compresses a file."""
    directory.mkdir(parents=True, exist_ok=True)
    for split, files in (("train", 3), ("val", 2)):
        for number in range(files):
            frames = []
            for i in range(10 * number, 10 * number + 8):
                values = {"image": make_jpeg(i), "label": i % 3, "name": f"{split} {i}".encode(), "w": [i, 0.5]}
                frames.append(frame(encode_example(EXAMPLE, values)))
            if number == 0:
                frames[5] = frames[5][:-5] + bytes([frames[5][-5] ^ 1]) + frames[5][-4:]
            data = b"".join(frames)
            name = f"ours-{split}.tfrecord-{number:05d}-of-{files:05d}"
            (directory / name).write_bytes(pack(data[:-3] if (split, number) == ("train", 2) else data))


class RawTables:
    """Tables of images by split, as csv, and one table of texts, as jsonl; some rows of each are bad."""

    def __init__(self, directory: Path, images=14):
        self.directory = directory
        self.images = {f"img/{i}.{'png' if i % 5 == 4 else 'jpg'}": self._image(i) for i in range(2 * images)}
        lines = [f"{name},{'cat' if i % 3 else 'dog'},{i / 4},n {i}" for i, name in enumerate(self.images)]
        header = "file,animal,weight,note"
        self.tables = {
            "train-0.csv": [header, *lines[:4], "img/none.jpg,cat,1,", lines[0]],
            "train-1.csv": [header, *lines[4:images], "img/1.jpg,cat", '"img/2.jpg'],
            "val.csv": [header, *lines[images:]],
        }

    @staticmethod
    def _image(seed):
        return make_image(seed, *(("PNG", "RGBA") if seed % 5 == 4 else ("JPEG", "RGB")), (16, 10 + seed % 7))

    def write(self):
        self.write_images()
        for name, lines in self.tables.items():
            (self.directory / name).write_text("\n".join(lines) + "\n")
        return self

    def write_images(self):
        for name, data in self.images.items():
            (self.directory / name).parent.mkdir(parents=True, exist_ok=True)
            (self.directory / name).write_bytes(data)
        return self

    def write_texts(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        rows = [{"text": f"Ein Käse {i} " * (i % 5 + 1), "about": ["x", "y", "z"][: i % 4]} for i in range(40)]
        lines = [json.dumps(row) for row in rows] + ["{", json.dumps({"text": "no labels"}), "", "[]"]
        (self.directory / "all.jsonl").write_text("\n".join(lines) + "\n")
        return self

    def convert(self, out, *flags):
        """Runs the real command line in this process."""
        table_to_gcs.main([f"--raw_data_dir={self.directory}", f"--gcs_output_path={out}", *flags])


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
            return tfds.core.DatasetInfo(builder=self, features=of_features, supervised_keys=("image", "label"))

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


RAW_DATA = {
    "tfds": write_damaged_tfds,
    "tfrecord": write_tfrecords,
    "tfrecord compressed": lambda directory: write_tfrecords(directory, gzip.compress),
    "imagenet tars": lambda directory: imagenet_with_a_bad_image(directory).write(),
    "imagenet folders": lambda directory: imagenet_with_a_bad_image(directory).write_folders(),
    "image folder by split": lambda directory: RawImageFolder(directory).write("train").write("val"),
    "image folder": lambda directory: RawImageFolder(directory).write(),
    "idx": lambda directory: RawMnist(directory).write(),
    "csv of images": lambda directory: RawTables(directory).write(),
    "jsonl of texts": lambda directory: RawTables(directory).write_texts(),
    "cifar-10 archive": lambda directory: RawCifar(directory).write_archive(),
    "cifar-100 folder": lambda directory: RawCifar(directory, coarse=True, images=12).write(),
}


@pytest.fixture(scope="session")
def tiny_tfds(tmp_path_factory):
    """A TFDS data_dir with the dataset "tiny" in it. Do not change it: copy."""
    directory = tmp_path_factory.mktemp("tfds")
    prepare_tfds(directory)
    return directory


@pytest.fixture(scope="session")
def write_raw_data():
    """write_raw_data(kind, directory): what that writes, with its `directory` and `convert`."""
    return lambda kind, directory: RAW_DATA[kind](directory)


@pytest.fixture
def raw_image_folder(tmp_path):
    """A small image folder, not written yet, so that the test may change its `files`."""
    return RawImageFolder(tmp_path / "raw")


@pytest.fixture
def raw_mnist(tmp_path):
    """Small idx files, not written yet, so that the test may change its `images` and `labels`."""
    return RawMnist(tmp_path / "raw")


@pytest.fixture
def raw_tables(tmp_path):
    """Small tables, not written yet, so that the test may change its `images` and `tables`."""
    return RawTables(tmp_path / "raw")


@pytest.fixture(params=[False, True], ids=["cifar-10", "cifar-100"])
def raw_cifar(request, tmp_path):
    """A small CIFAR of either kind, not written yet, so that the test may change its `batches` and `names`."""
    return RawCifar(tmp_path / "raw", request.param)


@pytest.fixture
def raw_imagenet(tmp_path):
    """A small raw data set, written as tars, in a directory of its own."""
    return RawImagenet(tmp_path / "raw").write()


@pytest.fixture
def raw_folders(tmp_path):
    """The same raw data set as extracted folders."""
    return RawImagenet(tmp_path / "folders").write_folders()


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """(raw, out): the 1,797 digits as raw data and as shards of about 100 KB. Do not change them: copy."""
    raw, out = tmp_path_factory.mktemp("digits") / "raw", tmp_path_factory.mktemp("digits") / "out"
    digits_raw.write_raw(raw)
    imagenet_to_gcs.main(
        [
            f"--raw_data_dir={raw}",
            f"--gcs_output_path={out}",
            f"--label_file={raw}/synsets.txt",
            "--target_shard_bytes=100KB",
        ]
    )
    return raw, out


@pytest.fixture
def shard_digests():
    """Directory or gs:// path -> {name: sha256} of everything that has to be the same in equal conversions."""

    def digests(directory):
        storage = open_storage(str(directory))
        names = [name for name in storage.list(str(directory)) if "-of-" in name or name == "manifest.json"]
        names += [f"_index/{name}" for name in storage.list(f"{directory}/_index")]
        return {name: hashlib.sha256(storage.read(f"{directory}/{name}")).hexdigest() for name in sorted(names)}

    return digests


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory):
    """A real GCS server behind a gateway that can fail; one for all tests. Child processes reach it by its `env`."""
    with start(tmp_path_factory.mktemp("gcs")) as server:
        yield server


def _forget_client():
    if gcs_calls.client.cache_info().currsize:
        gcs_calls.client().close()
    gcs_calls.client.cache_clear()
    gcs_calls.credentials.cache_clear()


@pytest.fixture(scope="session")
def open_bucket(gcs_server):
    """open_bucket("name"): a context with a new bucket, "gs://name", which clients in this process reach, too."""

    @contextlib.contextmanager
    def opened(name):
        gcs_server.make_bucket(name)
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in gcs_server.env.items():
                patch.setenv(variable, value)
            _forget_client()
            yield f"gs://{name}"
            _forget_client()
        gcs_server.reset()

    return opened


@pytest.fixture
def bucket(open_bucket, request):
    """ "gs://name" of a new bucket of the test's own."""
    with open_bucket(f"bucket-{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]}") as opened:
        yield opened
