"""describe tells what is there, and reads little for it."""

import dataclasses
import subprocess
import sys

import pytest
from damage import flip_payload_bits

from pipeline.commands import record_facts as facts
from pipeline.commands.describe import main
from pipeline.errors import ManifestError
from pipeline.shards.manifest import read_manifest, update_manifest
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.storage.local import LocalStorage

SCHEMA = Schema(
    "animals",
    {
        "label": Feature("int64", doc="which [bold]animal"),
        "name": Feature("bytes", content="text"),
        "image": Feature("bytes", optional=True, content="image"),
        "box": Feature("float32", (None,), optional=True),
        "data": Feature("bytes", optional=True),
    },
)


@pytest.fixture
def describe(capsys, monkeypatch):
    """describe(directory, *flags) -> what it printed, spaces folded."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(directory, *flags):
        main([str(directory), *flags])
        return "\n".join(
            " ".join(line.replace("│", " ").split())
            for line in capsys.readouterr().out.splitlines()
        )

    return run


@pytest.fixture
def animals(write_dataset, tmp_path):
    """animals(shards of records, classes=3): a labelled dataset of one split; its path."""

    def write(shards, classes=3):
        directory = write_dataset(tmp_path / "animals", {"train": shards}, SCHEMA)
        labels = Labels("label", 1, tuple(f"animal{number}" for number in range(1, classes + 1)))
        fields = {"labels": labels, "writer": "us 1.0"}
        entry = dataclasses.replace(
            read_manifest(directory).splits["train"], rejected=3, fixups={"png_to_jpeg": 2}
        )
        fields["splits"] = {"train": entry}
        update_manifest(
            LocalStorage(),
            directory,
            lambda _: dataclasses.replace(read_manifest(directory), **fields),
        )
        return directory

    return write


def named(label, **more):
    return {"label": label, "name": b"a", **more}


def test_describe_prints_schema_and_splits(animals, describe):
    directory = animals([[named(1)] * 3, [named(2)]])
    entry = read_manifest(directory).splits["train"]
    printed = describe(directory)
    assert "animals, schema 'animals', written by us 1.0" in printed
    assert "\nlabel int64 1 value which [bold]animal\n" in printed  # text, not markup
    assert "\nbox float32 any length, optional\n" in printed
    assert "\nimage bytes 1 value, optional image\n" in printed
    assert f"\ntrain 4 {entry.num_bytes} B 2 3 PNG to JPEG 2\n" in printed
    assert f"train: fingerprint {entry.fingerprint}, plan {entry.plan_digest}, seed 0" in printed


def test_shards_are_counted_by_size(animals, describe):
    printed = describe(animals([[named(1)] * count for count in (100, 101, 10, 55)]))
    bars = [
        line.split(" █")[0]
        for line in printed.splitlines()
        if " B to " in line or " KB to " in line
    ]
    assert len(bars) == 8
    assert [int(line.rsplit(" ")[-1]) for line in bars] == [1, 0, 0, 1, 0, 0, 0, 2]
    printed = describe(animals([[named(1)] * count for count in (100, 101, 100)]))
    assert printed.count(" KB to ") == 1
    assert " KB 3 █" in printed


@pytest.mark.parametrize("limit", ["ALL_RECORDS", "ALL_BYTES"])
def test_labels_of_a_large_split_are_those_of_a_sample_and_it_says_so(
    animals, describe, monkeypatch, limit
):
    monkeypatch.setattr(facts, limit, 999)
    directory = animals([[named(1)] * 900, [named(2), *[named(3)] * 99]])
    printed = describe(directory)
    assert "train: labels of a sample of 200 of the 1,000 records; 2 of 3 classes occur" in printed
    assert "1 animal1 180 █" in printed
    assert "3 animal3 20 █" in printed
    assert describe(directory, "--all") != printed


def test_all_labels_are_counted_if_they_are_few_and_damaged_records_are_apart(animals, describe):
    directory = animals([[named(1)] * 900, [named(2), *[named(3)] * 99]], classes=4)
    flip_payload_bits(directory, "train", 0, 9)
    printed = describe(directory, "--samples", "2")
    assert "train: record 0 cannot be shown. " in printed
    assert "train: record 500, " in printed
    assert (
        "train: labels of all 1,000 records; 3 of 4 classes occur. 2 records are damaged and left out here. "
        "To find every damaged record, run: " in printed
    )
    for line in ("1 animal1 898 █", "2 animal2 1 ▏", "3 animal3 99 █", "\n4 animal4 0\n"):
        assert line in printed


def test_only_the_most_and_least_frequent_classes_are_printed(animals, describe):
    records = [named(label) for label in range(1, 41) for _ in range(label)]
    printed = describe(animals([records], classes=39), "--all")
    assert (
        "39 of 39 classes occur. 40 labels are outside 1..39. Only the 10 most frequent and the 10 least "
        in printed
    )
    assert "40 (outside the range) 40 █" in printed
    assert "1 animal1 1 █" in printed
    assert "20 animal20" not in printed


def test_json_counts_classes_of_the_same_name_separately(animals, monkeypatch):
    monkeypatch.setattr("pipeline.commands.describe.FACTS", facts := {})
    directory = animals([[named(1), named(2), named(2), named(9)]])

    def labels():
        main([directory, "--json"])
        return facts["splits"]["train"]["labels"]

    assert labels() == {"animal1": 1, "animal2": 2, 9: 1}
    eels = Labels("label", 1, ("eel", "eel", "cat"))
    update_manifest(LocalStorage(), directory, lambda it: dataclasses.replace(it, labels=eels))
    assert labels() == {"1 eel": 1, "2 eel": 2, "9 (outside the range)": 1}


def test_samples_show_every_kind_of_value(animals, describe, images):
    jpeg = (LocalStorage().read(f"{images}/train-00000-of-00003")).partition(b"\xff\xd8")
    jpeg = (jpeg[1] + jpeg[2]).partition(b"\xff\xd9")
    more = {"image": jpeg[0] + jpeg[1], "box": [0.5] * 5, "data": b"0123456789"}
    directory = animals(
        [[{"label": 2, "name": b"caf\xc3\xa9 \x1b[31m \xff", **more}, named(1, image=b"no")]]
    )
    printed = describe(directory, "--samples", "2")
    assert "train: record 0, " in printed
    assert "\nlabel 2 animal2\n" in printed
    assert "\nname café \\x1b[31m \\xff\n" in printed  # no orders to the terminal
    assert "\nimage JPEG 8x8 L, " in printed
    assert "\nbox 0.5, 0.5, 0.5, 0.5, ... (5 values)\n" in printed
    assert "\ndata 30 31 32 33 34 35 36 37 ... (10 bytes)\n" in printed
    assert "\nimage unreadable image (no image that Pillow recognizes), 2 B\n" in printed
    assert "record 0" not in describe(directory, "--samples", "0")


def test_an_empty_split_and_one_without_labels_are_described_too(write_dataset, tmp_path, describe):
    schema = Schema("numbers", {"number": Feature("int64")})
    splits = {"train": [[{"number": 5}]], "test": [[], []]}
    directory = write_dataset(tmp_path / "data", splits, schema)
    printed = describe(directory)
    assert "\ntest 0 0 B 2 0\n" in printed
    assert "0 B to 0 B 2 █" in printed
    assert "labels" not in printed
    assert "\nnumber 5\n" in printed
    assert "\ntest 0 0 B 2 0\n" in describe(directory, "--split", "test")


def test_a_dataset_that_cannot_be_described_is_one_line_and_exit_code_2(animals, tmp_path):
    with pytest.raises(ManifestError, match="there is no such directory"):
        main([str(tmp_path / "nowhere")])
    directory = animals([[named(1)]])
    LocalStorage().delete(f"{directory}/train-00000-of-00001")
    command = [sys.executable, "-m", "pipeline.commands.describe", directory]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "Splits" in done.stdout
    assert done.stderr.startswith(f"error: {directory}/train-00000-of-00001 is missing.")
    assert done.stderr.count("\n") == 1


def test_a_bucket_is_described_in_a_few_requests(animals, describe, bucket, gcs_server):
    directory = animals([[named(1)] * 300, [named(2)] * 700])
    expected = describe(directory)
    for file in (
        "manifest.json",
        "_index/train.npy",
        "train-00000-of-00002",
        "train-00001-of-00002",
    ):
        gcs_server.write(
            bucket.removeprefix("gs://"), f"data/{file}", LocalStorage().read(f"{directory}/{file}")
        )
    gcs_server.reset()
    assert describe(f"{bucket}/data") == expected
    assert len(gcs_server.requests()) < 20
