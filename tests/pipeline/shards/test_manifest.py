"""What a dataset directory says of itself."""

import dataclasses
import json
import re

import pytest

from pipeline.errors import EmptySplitError, ManifestError, OptionError
from pipeline.shards.manifest import (
    Manifest,
    ShardEntry,
    SplitEntry,
    read_manifest,
    update_manifest,
)
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.storage.local import LocalStorage

ENTRY = SplitEntry(
    (ShardEntry("train-00000-of-00001", 3, 100, 7),),
    1,
    "plan",
    "keys",
    0,
    fixups={"png_to_jpeg": 1},
)
MANIFEST = Manifest(
    "name",
    Schema("s", {"a": Feature("int64", (2, 3))}),
    {"train": ENTRY},
    Labels("a", 1, ("x", "y")),
)


def write(directory, manifest=MANIFEST):
    update_manifest(LocalStorage(), str(directory), lambda _: manifest)


def test_a_written_manifest_is_read_back(tmp_path):
    write(tmp_path)
    assert read_manifest(str(tmp_path)) == dataclasses.replace(MANIFEST, directory=str(tmp_path))


def test_the_fingerprint_depends_on_the_data_alone(tmp_path):
    copied = dataclasses.replace(ENTRY, seed=5, plan_digest="other", sources={"inputs": 9})
    changed = dataclasses.replace(ENTRY, shards=(dataclasses.replace(ENTRY.shards[0], crc32c=8),))
    assert ENTRY.fingerprint == copied.fingerprint != changed.fingerprint
    assert len(ENTRY.fingerprint) == 32


def test_a_missing_directory_an_unfinished_conversion_and_a_wrong_directory_are_told_apart(
    tmp_path,
):
    with pytest.raises(
        ManifestError, match=r"nope/manifest\.json does not exist: there is no such directory"
    ):
        read_manifest(str(tmp_path / "nope"))
    with pytest.raises(ManifestError, match="no conversion wrote here"):
        read_manifest(str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(ManifestError, match=r"/file is a file\. Give its directory"):
        read_manifest(str(tmp_path / "file"))
    (tmp_path / "_shards").mkdir()
    (tmp_path / "_shards/train.plan.json").write_text("{}")
    with pytest.raises(
        ManifestError,
        match=r"has not finished, or has failed. Run that conversion again: it resumes",
    ):
        read_manifest(str(tmp_path))


def test_another_version_and_damage_are_refused(tmp_path):
    path = tmp_path / "manifest.json"
    write(tmp_path)
    good = json.loads(path.read_text())
    del good["checksum"]
    path.write_text(json.dumps(good | {"format_version": 99}))
    with pytest.raises(ManifestError, match=r"format_version 99; this infeed reads 1\. .* upgrade"):
        read_manifest(str(tmp_path))
    path.write_text("{")
    with pytest.raises(ManifestError, match=r"manifest\.json is not JSON.* Copy it again"):
        read_manifest(str(tmp_path))


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (
            ["schema", "features", "a", "content"],
            "image",
            "schema.features.a: content 'image' of dtype int64: must be",
        ),
        (
            ["schema", "tfds"],
            {"features.json": "{"},
            "the text of schema.tfds['features.json'] is not JSON",
        ),
        (["splits", "train", "shards"], [], "splits.train.shards: expected array of length >= 1."),
        (["format_version"], "1", 'format_version is "1": expected int, got str.'),
    ],
)
def test_a_value_that_does_not_fit_is_named_by_the_path_of_its_key(tmp_path, place, value, said):
    write(tmp_path)
    fields = json.loads((tmp_path / "manifest.json").read_text())
    del fields["checksum"]
    inner = fields
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    (tmp_path / "manifest.json").write_text(json.dumps(fields))
    with pytest.raises(
        ManifestError, match=rf"manifest\.json: {re.escape(said)}.* Copy it again; or delete it"
    ):
        read_manifest(str(tmp_path))


def test_a_manifest_that_was_changed_is_refused_until_its_checksum_is_taken_out(tmp_path):
    path = tmp_path / "manifest.json"
    write(tmp_path)
    changed = json.loads(path.read_text())
    changed["labels"]["names"][0] = "z"
    path.write_text(json.dumps(changed))
    with pytest.raises(ManifestError, match=r"its checksum is '\w{8}', but that of its fields .*:"):
        read_manifest(str(tmp_path))
    with pytest.raises(ManifestError, match="it is damaged"):
        write(tmp_path)
    del changed["checksum"]
    path.write_text(json.dumps(changed))
    assert read_manifest(str(tmp_path)).labels.names == ("z", "y")


def test_an_older_manifest_reads_without_a_checksum_and_gets_one_when_a_split_joins(tmp_path):
    path = tmp_path / "manifest.json"
    write(tmp_path)
    written = path.read_text()
    fields = json.loads(written)
    del fields["checksum"]
    path.write_text(json.dumps(fields))
    assert read_manifest(str(tmp_path)) == dataclasses.replace(MANIFEST, directory=str(tmp_path))
    update_manifest(LocalStorage(), str(tmp_path), lambda there: there)
    assert path.read_text() == written


def test_the_checksum_does_not_depend_on_layout_or_order(tmp_path):
    path = tmp_path / "manifest.json"
    labels = Labels("a", 1, ("\u00e9", "\udc80"))  # of a name that is not UTF-8, too
    write(tmp_path, dataclasses.replace(MANIFEST, labels=labels))
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(fields.items())), separators=(",", ":")))
    assert read_manifest(str(tmp_path)).labels == labels


def test_an_unknown_split_names_the_nearest_and_an_empty_one_is_refused(tmp_path):
    empty = dataclasses.replace(ENTRY, shards=(ShardEntry("valid-00000-of-00001", 0, 0, 0),))
    manifest = dataclasses.replace(MANIFEST, splits={"train": ENTRY, "validation": empty})
    with pytest.raises(
        OptionError, match=r"no split 'tarin'\. Did you mean 'train'\? Known: train, validation"
    ):
        manifest.split("tarin")
    with pytest.raises(EmptySplitError, match="'validation' of name has no records"):
        manifest.split("validation")
