"""Raw data of each kind with one image that a test changes."""

import gzip


def other_bytes(jpeg):
    """A JPEG of another density."""
    at = jpeg.index(b"JFIF\0") + 9
    return jpeg[:at] + bytes([jpeg[at] ^ 3]) + jpeg[at + 1 :]


class Folders:
    """Class folders of images."""

    flags = ("--splits=train", "--num-train-shards=3", "--max-bad-records=3")

    def __init__(self, raw):
        self.raw = raw
        self.write()

    def write(self):
        self.raw.write("train")

    def changed(self):
        return self.raw.directory / "train/dog/100.jpeg"

    def change(self):
        """One image becomes another one of the same size, in the file `changed`."""
        self.raw.files["dog"]["100.jpeg"] = other_bytes(self.raw.files["dog"]["100.jpeg"])
        self.changed().write_bytes(self.raw.files["dog"]["100.jpeg"])


class Zips(Folders):
    def write(self):
        self.raw.write_archives()

    def change(self):
        self.raw.files["dog"]["100.jpeg"] = other_bytes(self.raw.files["dog"]["100.jpeg"])
        self.write()

    def changed(self):
        return self.raw.directory / "train.zip"


class Tars(Zips):
    flags = ("--splits=validation", "--num-validation-shards=3", "--max-bad-records=3")

    def changed(self):
        return self.raw.directory / "val.tar"


class CompressedTars(Tars):
    def write(self):
        self.raw.write_archives()
        tar = self.raw.directory / "val.tar"
        (self.raw.directory / "val.tar.gz").write_bytes(gzip.compress(tar.read_bytes(), 0))
        tar.unlink()

    def changed(self):
        return self.raw.directory / "val.tar.gz"


class ImagesOfATable(Folders):
    flags = (
        "--image-column=file",
        "--label-column=animal",
        "--splits=train",
        "--num-train-shards=3",
        "--max-bad-records=9",
    )

    def write(self):
        self.raw.write()

    def changed(self):
        return self.raw.directory / "img/3.jpg"

    def change(self):
        self.changed().write_bytes(other_bytes(self.changed().read_bytes()))


KINDS = {
    "folders": Folders,
    "a zip": Zips,
    "a tar": Tars,
    "a .tar.gz": CompressedTars,
    "a table's": ImagesOfATable,
}
