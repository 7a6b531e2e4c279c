"""The files for TFDS: what they say, and that every change of what they say is named, and no change of layout."""

import dataclasses
import json

import pytest

from pipeline.shards.manifest import Manifest, ShardEntry, SplitEntry
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.shards.sidecar_check import sidecar_problems
from pipeline.shards.sidecars import sidecar_texts, write_sidecars
from pipeline.storage.local import LocalStorage

IMAGE, TEXT = Feature("bytes", content="image"), Feature("bytes", content="text")
SCHEMA = Schema(
    "tfds", {"image": IMAGE, "label": Feature("int64"), "file_name": TEXT}, "ours-{SPLIT}", "5.1.0"
)
SHARDS = tuple(
    ShardEntry(f"ours-{i}", records, 100 * records, 0) for i, records in enumerate((3, 4))
)
ENTRY = SplitEntry(SHARDS, 0, "", "", 0)
MANIFEST = Manifest(
    "imagenet2012",
    SCHEMA,
    {"train": ENTRY},
    Labels("label", 0, ("cat", "grey eel", "dög")),
    "infeed",
)


@pytest.fixture
def written(tmp_path):
    write_sidecars(LocalStorage(), str(tmp_path), MANIFEST)
    return tmp_path


def problems(directory, manifest=MANIFEST):
    placed = dataclasses.replace(manifest, directory=str(directory))
    return [
        f"{path.rpartition('/')[2]}: {what}"
        for path, what in sidecar_problems(LocalStorage(), placed)
    ]


def edit(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_sidecars_are_intact_in_any_order_of_keys_and_whitespace(written):
    assert problems(written) == []
    for path in written.glob("*.json"):
        upside_down = dict(reversed(json.loads(path.read_text()).items()))
        path.write_text(json.dumps(upside_down, indent=7, ensure_ascii=False))
    (written / "label.labels.txt").write_text("\n  cat\r\ngrey eel\t\n\ndög")
    assert problems(written) == []


CHANGES = {
    "splits[0].shardLengths[1] is '5', the manifest says '4'": lambda i: i["splits"][0].update(
        shardLengths=["3", "5"]
    ),
    "splits[0].shardLengths is ['7'], the manifest says ['3', '4']": lambda i: i["splits"][
        0
    ].update(shardLengths=["7"]),
    "splits[0].shardLengths[0] is 3, the manifest says '3'": lambda i: i["splits"][0].update(
        shardLengths=[3, "4"]
    ),
    "splits is [], the manifest says [{": lambda i: i["splits"].clear(),
    "splits[0].name is 'trai\\x1b', the manifest says 'train'": lambda i: i["splits"][0].update(
        name="trai\x1b"
    ),
    "splits[0].numBytes is missing, the manifest says '700'": lambda i: i["splits"][0].pop(
        "numBytes"
    ),
    "disableShuffling is True, the manifest has no such field": lambda i: i.update(
        disableShuffling=True
    ),
    "fileFormat is 'array_record', the manifest says 'tfrecord' (1 more differences)": lambda i: (
        i.update(fileFormat="array_record", version="5.1.1")
    ),
    "supervisedKeys.tuple.items[0].featureKey is 'file_name', the manifest says 'image'": lambda i: (
        i["supervisedKeys"]["tuple"]["items"][0].update(featureKey="file_name")
    ),
}


@pytest.mark.parametrize("named", CHANGES)
def test_a_change_of_what_dataset_info_says_is_named_with_its_place(written, named):
    edit(written / "dataset_info.json", CHANGES[named])
    (problem,) = problems(written)
    assert problem.startswith(f"dataset_info.json: {named}")


def test_a_changed_feature_is_named(written):
    edit(
        written / "features.json",
        lambda f: f["featuresDict"]["features"]["image"]["image"].update(dtype="uint16"),
    )
    where = "features.json: featuresDict.features.image.image.dtype"
    assert problems(written) == [f"{where} is 'uint16', the manifest says 'uint8'"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cat\ngrey eel\n", "has 2 names, the manifest has 3"),
        (
            "cat\ndög\ngrey eel\n",
            "name 1 is 'dög', the manifest says 'grey eel' (1 more differences)",
        ),
        ("", "has 0 names, the manifest has 3"),
    ],
)
def test_names_of_classes_that_changed_are_named_by_number(written, text, said):
    (written / "label.labels.txt").write_text(text)
    assert problems(written) == [f"label.labels.txt: {said}"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is not JSON as TFDS reads it: Expecting value"),
        (b'{"a": 1, "a": 1}', 'is not JSON as TFDS reads it: an object has the key "a" twice'),
        (b"[" * 100_000, "while decoding a JSON array"),
        (b"9" * 5000, "is not JSON as TFDS reads it: Exceeds the limit"),
        (b"[" * 900 + b"]" * 900, "the file is [[[["),
        (b"\xff{}", "is not UTF-8: "),
        ("{}".encode("utf-16"), "is not UTF-8: "),
        (b"NaN", "the file is nan, the manifest says {"),
        (b'"\\ud800"', "the file is '\\ud800', the manifest says {"),
    ],
    ids=str,
)
def test_what_is_no_json_object_is_one_line(written, data, said):
    for name in ("dataset_info.json", "features.json"):
        (written / name).write_bytes(data)
    for problem in problems(written):
        assert said in problem
        assert problem.isprintable()
    assert len(problems(written)) == 2


def test_files_that_came_from_tfds_stay_as_they_were(tmp_path):
    info = {"name": "ours", "version": "1.2.0", "citation": "theirs"}
    tfds = {
        "dataset_info.json": json.dumps(info),
        "features.json": '{"theirs": 1}',
        "metadata.json": '{"a": 1}',
    }
    manifest = dataclasses.replace(MANIFEST, schema=dataclasses.replace(SCHEMA, tfds=tfds))
    texts = sidecar_texts(manifest)
    written = json.loads(texts["dataset_info.json"])
    assert {key: written[key] for key in info} == info
    assert "supervisedKeys" not in written
    write_sidecars(LocalStorage(), str(tmp_path), manifest)
    assert problems(tmp_path, manifest) == []
    edit(tmp_path / "dataset_info.json", lambda info: info.pop("citation"))
    assert problems(tmp_path, manifest) == [
        "dataset_info.json: citation is missing, the manifest says 'theirs'"
    ]
    write_sidecars(LocalStorage(), str(tmp_path), manifest)
    (tmp_path / "metadata.json").write_text('{"a": true}')
    assert problems(tmp_path, manifest) == ["metadata.json: a is True, the manifest says 1"]


@pytest.mark.parametrize(
    ("features", "keys"),
    [
        ({"image": IMAGE, "name": TEXT}, ("image", "label")),
        ({"text": TEXT}, ("text", "label")),
        ({"image/encoded": IMAGE}, None),  # TFDS finds keys at the top level alone
        ({"left": IMAGE, "right": IMAGE}, None),
        ({"question": TEXT, "answer": TEXT}, None),
        ({"image": dataclasses.replace(IMAGE, optional=True)}, None),
        ({"x": Feature("float32")}, None),
    ],
)
def test_supervised_keys_are_the_only_input_and_the_label(features, keys):
    schema = Schema("any", {**features, "label": Feature("int64")})
    info = json.loads(
        sidecar_texts(dataclasses.replace(MANIFEST, schema=schema))["dataset_info.json"]
    )
    found = info.get("supervisedKeys", {"tuple": {"items": []}})["tuple"]["items"]
    assert tuple(item["featureKey"] for item in found) == (keys or ())
