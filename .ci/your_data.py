"""Small data of the kinds that README's blocks convert, in the current directory.

    PYTHONPATH=tests/making python .ci/your_data.py PACKAGES    PACKAGES: where Debian's mate-backgrounds is unpacked

books/: infeed's pages as text. iris/: the table as Parquet. photos/: folders of tiles cut out of
photographs, as JPEG, PNG and WebP. ILSVRC2012/: ImageNet's tars with ten of its classes. flowers/:
the photos as a table. records/: TFRecord files. tensorflow_datasets/: a dataset prepared by
TFDS."""

import csv
import io
import os
import sys
import tarfile
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import pyarrow
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image
from pyarrow import parquet
from sklearn.datasets import load_digits, load_iris
from tiles import tiles

CLASSES = 12
SYNSETS = Path(__file__).parents[1] / "converters/imagenet/synsets.txt"


def write_photos(packages: Path, out: Path) -> None:
    """A folder per photograph, with the tiles that it was cut into."""
    number = -1
    for number, row, column, tile in tiles(packages):
        folder = out / f"photo{number:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        suffix = {0: ".png", 1: ".webp"}.get((row + column) % 10, ".jpg")
        tile.save(folder / f"{row}_{column}{suffix}", quality=92)
    assert number + 1 == CLASSES, f"{packages} has {number + 1} photographs; {CLASSES} are needed"


def write_books(out: Path) -> None:
    """Every page of the checkout as a text file."""
    out.mkdir()
    for page in sorted(Path(__file__).parents[1].glob("*/*.md")):
        (out / f"{page.stem}.txt").write_text(page.read_text())


def write_table(photos: Path, out: Path) -> None:
    """train.csv with the path and the class of each photo."""
    out.mkdir()
    with (out / "train.csv").open("w") as file:
        rows = csv.writer(file)
        rows.writerow(["file", "flower"])
        rows.writerows([f"../{path}", path.parent.name] for path in sorted(photos.glob("*/*")))


def write_iris(out: Path) -> None:
    """The flowers as Parquet: four numbers and a species."""
    out.mkdir()
    iris = load_iris()
    names = [name.removesuffix(" (cm)").replace(" ", "_") for name in iris.feature_names]
    columns = dict(zip(names, iris.data.T, strict=True))
    columns["species"] = [str(iris.target_names[number]) for number in iris.target]
    parquet.write_table(pyarrow.table(columns), out / "iris.parquet")


def jpeg(pixels) -> bytes:
    """A digit as a JPEG of 32 x 32 pixels."""
    sink = io.BytesIO()
    Image.fromarray((pixels * 15.9).astype("uint8")).resize((32, 32)).convert("RGB").save(
        sink, "jpeg", quality=92
    )
    return sink.getvalue()


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Adds a file to a tar."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def write_imagenet(images: list[bytes], labels: list[int], out: Path) -> None:
    """The original tars: of training, with a tar per class in it, and of validation."""
    out.mkdir()
    synsets = [line.split()[0] for line in SYNSETS.read_text().splitlines()[:10]]
    with tarfile.open(out / "ILSVRC2012_img_train.tar", "w") as train:
        for label, synset in enumerate(synsets):
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w") as tar:
                for number, image in enumerate(images[300:]):
                    if labels[300 + number] == label:
                        add(tar, f"{synset}_{number}.JPEG", image)
            add(train, f"{synset}.tar", inner.getvalue())
    with tarfile.open(out / "ILSVRC2012_img_val.tar", "w") as tar:
        for number, image in enumerate(images[:300]):
            add(tar, f"ILSVRC2012_val_{number + 1:08d}.JPEG", image)
    (out / "synset_labels.txt").write_text("".join(f"{synsets[label]}\n" for label in labels[:300]))


def write_records(images: list[bytes], labels: list[int], out: Path) -> None:
    """TFRecord files of another program, with keys of its own."""
    out.mkdir()
    for split, rows in (("train", range(300, len(images))), ("validation", range(300))):
        with tf.io.TFRecordWriter(str(out / f"{split}-00000-of-00001")) as file:
            for row in rows:
                example = tf.train.Example()
                example.features.feature["jpeg"].bytes_list.value.append(images[row])
                example.features.feature["digit"].int64_list.value.append(labels[row])
                file.write(example.SerializeToString())


def write_tfds(pixels, labels: list[int], out: Path) -> None:
    """TFDS's mnist, with other digits."""
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(28, 28, 1)),
            "label": tfds.features.ClassLabel(num_classes=10),
        }
    )
    large = (tf.image.resize(pixels[..., None], (28, 28)).numpy() * 15.9).astype("uint8")
    splits = {"train": slice(300, None), "test": slice(300)}
    examples = {
        name: [
            {"image": image, "label": label}
            for image, label in zip(large[rows], labels[rows], strict=True)
        ]
        for name, rows in splits.items()
    }
    datasets = {
        name: tf.data.Dataset.from_generator(
            lambda rows=rows: iter(rows),
            output_signature={
                "image": tf.TensorSpec((28, 28, 1), tf.uint8),
                "label": tf.TensorSpec((), tf.int64),
            },
        )
        for name, rows in examples.items()
    }
    tfds.dataset_builders.store_as_tfds_dataset(
        name="mnist", version="3.0.1", features=features, split_datasets=datasets, data_dir=str(out)
    )


def main() -> None:
    """Writes everything."""
    write_photos(Path(sys.argv[1]), Path("photos"))
    write_table(Path("photos"), Path("flowers"))
    write_books(Path("books"))
    write_iris(Path("iris"))
    digits = load_digits()
    images, labels = [jpeg(pixels) for pixels in digits.images], digits.target.tolist()
    write_imagenet(images, labels, Path("ILSVRC2012"))
    write_records(images, labels, Path("records"))
    write_tfds(digits.images, labels, Path("tensorflow_datasets"))


if __name__ == "__main__":
    main()
