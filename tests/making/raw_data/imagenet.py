"""ImageNet's layouts."""

from pathlib import Path

from converters import imagenet_to_gcs
from raw_data.images import make_jpeg, make_tar


class RawImagenet:
    """A directory in the original layout, of images that the test may spoil before it is written."""

    def __init__(self, directory: Path, train=(7, 5, 6), validation=4):
        self.directory = directory
        self.synsets = [f"n{number:08d}" for number in range(1, len(train) + 1)]
        self.train = {
            synset: {
                f"{synset}_{i}.JPEG": make_jpeg(seed=100 * c + i, height=8 + i)
                for i in range(count)
            }
            for c, (synset, count) in enumerate(zip(self.synsets, train, strict=True))
        }
        self.validation = {
            f"ILSVRC2012_val_{i:08d}.JPEG": make_jpeg(seed=1000 + i)
            for i in range(1, validation + 1)
        }
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
        labels = f"--label-file={self.directory}/synsets.txt"
        imagenet_to_gcs.main(
            [f"--raw-data-dir={self.directory}", f"--gcs-output-path={out}", labels, *flags]
        )


def imagenet_with_a_bad_image(directory):
    raw = RawImagenet(directory)
    raw.train["n00000001"]["n00000001_0.JPEG"] = b"not an image"
    raw.validation["ILSVRC2012_val_00000099.JPEG"] = make_jpeg()  # which has no label
    return raw


def photographs(directory):
    """68 JPEGs of 28 KB, 54 of them for training.

    As many bytes as the digits in a thirtieth of the records: from a bucket each is a request, which costs server and
    client 3 ms."""
    raw = RawImagenet(directory, train=(6,) * 9, validation=14)
    for images in (*raw.train.values(), raw.validation):
        images.update({name: jpeg.ljust(28_100, b"\0") for name, jpeg in images.items()})
    return raw.write()
