"""The raw data that the examples in the help of converters name. No record of them is rejected."""

from tokenizers import Tokenizer, models

from raw_data.folders import RawImageFolder
from raw_data.imagenet import RawImagenet
from raw_data.pixels import RawCifar, RawMnist
from raw_data.tables import RawTables

SYNSETS = ["n01440764", "n01443537", "n01484850"]  # of ILSVRC2012


def imagenet(directory):
    raw = RawImagenet(directory / "ILSVRC2012")
    named = dict(zip(raw.synsets, SYNSETS, strict=True))
    raw.train = {
        named[synset]: {name.replace(synset, named[synset]): data for name, data in images.items()}
        for synset, images in raw.train.items()
    }
    raw.validation_labels = [named[synset] for synset in raw.validation_labels]
    raw.write()


def images(directory):
    raw = RawImageFolder(directory / "photos")
    for files in raw.files.values():
        del files["notes.txt"]
    raw.write()


def tables(directory):
    raw = RawTables(directory / "tables")
    raw.tables = {name: lines for name, lines in raw.tables.items() if name == "val.csv"}
    raw.write()
    (directory / "houses").mkdir()
    rows = [f"{i / 2},{'Rome' if i % 5 else 'Oslo'},It was number {i}" for i in range(60)]
    (directory / "houses/houses.csv").write_text("\n".join(["price,city,note", *rows]) + "\n")


def text(directory):
    (directory / "books").mkdir()
    for number in range(40):
        (directory / f"books/{number}.txt").write_text(f"Chapter {number}. " * 40)
    (directory / "reviews").mkdir()
    (directory / "reviews/train.csv").write_text("text,stars\nGood,5\nBad,1\n")
    Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "?": 2}, "?")).save(
        str(directory / "tokenizer.json")
    )


def idx(directory):
    for place, prefix in (("mnist", ""), ("emnist", "emnist-letters-")):
        raw = RawMnist(directory / place)
        raw.labels["train"] %= 10
        raw.write()
        for path in [*raw.directory.glob("*ubyte*")]:
            path.rename(
                path.with_name(prefix + path.name.replace("t10k", "test" if prefix else "t10k"))
            )


def cifar(directory):
    raw = RawCifar(directory / "cifar-10")
    for records in raw.batches.values():
        records[:, 0] %= 10
    raw.write()
