"""Every repair that verify prints is run as it is printed, and verify then finds nothing."""

import json
import os
import re
import shlex
import shutil
import subprocess

import pytest
from damage import flip
from raw_data.images import make_jpeg

from converters import imagenet_to_gcs
from pipeline.commands.index import main as index_main
from pipeline.commands.verify import main as verify_main
from pipeline.errors import OptionError

pytestmark = pytest.mark.usefixtures("without_beam")

SHARDS = {"tpu": "{split}-{number}", "tfds": "imagenet2012-{split}.tfrecord-{number}"}


class Dataset:
    """A conversion of two splits in one of both schemas, to damage and to repair."""

    def __init__(self, raw, out, schema="tpu"):
        self.raw, self.out, self.schema = raw, out, schema
        self.directory = out / "imagenet2012/5.1.0" if schema == "tfds" else out
        self.convert()

    def convert(self, *flags):
        labels = f"--label-file={self.raw.directory}/synsets.txt"
        forms = [f"--schema={self.schema}", "--num-train-shards=3"]
        place = [f"--raw-data-dir={self.raw.directory}", f"--output={self.out}"]
        imagenet_to_gcs.main([*place, labels, *forms, *flags])

    def train(self, number, count=3):
        """The path of a shard."""
        name = SHARDS[self.schema].format(split="train", number=f"{number:05d}-of-{count:05d}")
        return self.directory / name

    def edit(self, name, change):
        """Changes a file of JSON, whose checksum is left out."""
        path = self.directory / name
        data = json.loads(path.read_text())
        data.pop("checksum", None)
        change(data)
        path.write_text(json.dumps(data))

    def edit_split(self, change):
        self.edit("manifest.json", lambda manifest: change(manifest["splits"]["train"]))

    @property
    def index(self):
        return self.directory / "_index/train.npy"

    @property
    def names(self):
        return next(self.directory.glob("*.labels.txt"))


def run_printed(dataset, line):
    """Runs the command of a line of advice."""
    if found := re.search(r"its command with (.*?) \(it rewrites", line):
        dataset.convert(*shlex.split(found[1]))
    elif found := re.search(r": (rm .*)", line):
        subprocess.run(shlex.split(found[1]), check=True)
    else:
        (command,) = re.findall(r": infeed verify (.*) \(it rewrites", line)
        assert verify_main(shlex.split(command)) == 0


# What was done to a dataset -> what is said of it, and which kind of advice mends it.
CONVERSION, REMOVAL, SIDECARS = (
    "To repair train: run the conversion",
    "To remove files",
    "To repair the files for TFDS",
)
EXTRA = "00000-of-00009: is not in the manifest, but readers that match file names read it"
METADATA = "metadata.json: is not in the manifest, but TFDS reads info.metadata from it"
DAMAGES = {
    "a flipped bit": (lambda d: flip(d.train(1), -100), "payload has crc32c", CONVERSION),
    "a shard cut": (lambda d: os.truncate(d.train(1), 99), "ends inside it", CONVERSION),
    "a shard lost": (lambda d: d.train(2).unlink(), "is missing, with its", CONVERSION),
    "the index": (lambda d: flip(d.index, -1), "npy: has crc32c", CONVERSION),
    "no index": (lambda d: d.index.unlink(), "npy: cannot read", CONVERSION),
    "a key digest": (
        lambda d: d.edit_split(lambda split: split.update(key_digest="0" * 32)),
        *("key_digest of", CONVERSION),
    ),
    "a checksum": (
        lambda d: d.edit_split(lambda split: split["shards"][0].update(crc32c=1)),
        *("manifest says", CONVERSION),
    ),
    "a shard too many": (lambda d: shutil.copy(d.train(0), d.train(0, 9)), EXTRA, REMOVAL),
    "a split's lengths": (
        lambda d: d.edit(
            "dataset_info.json", lambda i: i["splits"][0].update(shardLengths=["5", "6", "6"])
        ),
        *("dataset_info.json: splits[0].shardLengths[0] is '5', the manifest says '6'", SIDECARS),
    ),
    "a feature": (
        lambda d: d.edit("features.json", lambda f: f["featuresDict"]["features"].popitem()),
        *("features.json: featuresDict.features.", SIDECARS),
    ),
    "a name of a class": (lambda d: flip(d.names, -3), ".labels.txt: name ", SIDECARS),
    "a file more": (
        lambda d: (d.directory / "metadata.json").write_text('{"x": 1}'),
        *(METADATA, REMOVAL),
    ),
    "no names": (lambda d: d.names.unlink(), ".labels.txt: cannot read", SIDECARS),
}


# Where names or directories differ, in TFDS's schema, too.
IN_BOTH = ("a flipped bit", "a shard too many", "no names")
CASES = [("tpu", damage) for damage in DAMAGES] + [("tfds", damage) for damage in IN_BOTH]


@pytest.mark.parametrize(("schema", "damage"), CASES)
def test_the_printed_command_repairs_each_damage(raw_imagenet, tmp_path, verify, schema, damage):
    dataset = Dataset(raw_imagenet, tmp_path / "with a blank", schema)  # which has to be quoted
    do, said, advice = DAMAGES[damage]
    do(dataset)
    status, printed, damaged = verify(dataset.directory)
    assert status == 1
    assert any(said in line for line in damaged)
    (line,) = [line for line in printed.splitlines() if line.startswith("To ")]
    assert line.startswith(advice)
    run_printed(dataset, line)
    status, printed, damaged = verify(dataset.directory)
    assert (status, damaged) == (0, [])
    assert "To " not in printed


def test_a_damaged_raw_image_is_repaired_in_the_raw_data_and_converted_again(
    raw_imagenet, tmp_path, verify
):
    whole = make_jpeg(seed=5)
    raw_imagenet.train["n00000001"]["n00000001_0.JPEG"] = whole[: len(whole) // 2] + b"\xff\xd9"
    dataset = Dataset(raw_imagenet.write(), tmp_path / "out")
    assert verify(dataset.directory)[0] == 0
    _, printed, damaged = verify(dataset.directory, "--decode")
    assert len(damaged) == 1
    assert "truncated or damaged" in damaged[0]
    (flags,) = re.findall(
        r"repair the raw data or the label file, and .* its command with (.*)\.", printed
    )
    raw_imagenet.train["n00000001"]["n00000001_0.JPEG"] = whole
    raw_imagenet.write()
    dataset.convert(*shlex.split(flags))
    assert verify(dataset.directory, "--decode")[::2] == (0, [])


@pytest.fixture
def indexed(raw_imagenet, tmp_path):
    """Shards that were found: what a conversion wrote, without all that it wrote beside them."""
    out = Dataset(raw_imagenet, tmp_path / "converted").directory
    for path in out.iterdir():
        if "-of-" not in path.name:
            (shutil.rmtree if path.is_dir() else os.unlink)(path)
    assert index_main([str(out)]) == 0
    return out


def test_files_that_were_indexed_are_copied_or_indexed_again(indexed, verify):
    (one, other, *_) = sorted(indexed.glob("train-*"))
    kept = one.read_bytes()
    flip(one, -100)
    (indexed / "train-00000-of-00009").write_bytes(kept)
    _, printed, damaged = verify(indexed)
    assert "train-00000-of-00009: is not in the manifest" in damaged[0]
    (rm,) = re.findall(r"To remove files that are not in the manifest: (rm .*)", printed)
    subprocess.run(shlex.split(rm), check=True)
    assert "To repair train: copy the files named above again" in printed
    one.write_bytes(kept)
    assert verify(indexed)[::2] == (0, [])
    shutil.copy(other, one)
    assert "if they were replaced on purpose, run the indexing command again" in verify(indexed)[1]
    assert index_main([str(indexed)]) == 0
    assert verify(indexed)[::2] == (0, [])


def test_wrong_names_of_labels_are_indexed_again(indexed, tmp_path, verify):
    names = tmp_path / "names.txt"
    flags = [
        str(indexed),
        f"--labels-file={names}",
        "--label-key=image/class/label",
        "--label-base=1",
    ]
    names.write_text("one\ntwo\n")
    assert index_main(flags) == 0
    status, printed, damaged = verify(indexed)
    assert status == 1
    assert "label 3 in 'image/class/label' is outside 1..2" in damaged[0]
    assert "correct the label file, and run the indexing command again" in printed
    names.write_text("one\ntwo\nthree\n")
    assert index_main(flags) == 0
    assert verify(indexed)[::2] == (0, [])
    with pytest.raises(
        OptionError, match="was indexed, not converted, so any files for TFDS in it"
    ):
        verify_main([str(indexed), "--write-sidecars"])
