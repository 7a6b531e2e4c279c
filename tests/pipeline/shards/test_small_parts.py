"""Sizes, names, schemas, errors."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pytest

from pipeline import errors
from pipeline.errors import ManifestError, OptionError, SchemaError
from pipeline.shards.naming import validate_split
from pipeline.shards.schema import Feature, Schema
from pipeline.shards.typed_json import REQUIRED, Count, JsonFile, NonEmpty
from pipeline.sizes import (
    counted,
    format_bytes,
    format_number,
    format_seconds,
    format_share,
    parse_bytes,
)

SHOWN = {
    parse_bytes: [("100MB", 10**8), ("1.5 GiB", 3 * 2**29), ("4096", 4096), (7, 7), ("2tb", 2 * 10**12), ("1KB", 1000)],
    format_bytes: [(999, "999 B"), (1234, "1.23 KB"), (999_900, "1000 KB"), (147e9, "147 GB"), (0, "0 B")],
    format_number: [
        *[(71_960.4, "71,960"), (9_999.6, "10,000"), (999.96, "1,000"), (97.574, "97.6"), (0.00784, "0.00784")],
        *[(9.278e-06, "0.0000093"), (11.5873, "11.6"), (0.5, "0.5"), (10.0, "10"), (0.0, "0"), (3e-9, "3e-09")],
        *[(1e15, "1e+15"), (-2500.2, "-2,500"), (12_345_678_901_234, "12,345,678,901,234"), (float("nan"), "nan")],
    ],
    format_share: [(0.93, "93 %"), (0.9375, "93.8 %"), (1.0, "100 %"), (0.9999, "> 99.9 %"), (0.0, "0 %"), (0.0001, "< 0.1 %")],
    format_seconds: [
        *[(0.84, "0.84 s"), (11.5873, "11.6 s"), (60, "1 min"), (200, "3 min 20 s"), (3599.7, "1 h")],
        *[(7500, "2 h 5 min"), (273_600, "3 d 4 h")],
    ],
}  # fmt: skip


@pytest.mark.parametrize("function", SHOWN)
def test_sizes_and_numbers_are_read_and_shown_as_people_write_them(function):
    rows = SHOWN[function]
    assert [function(value) for value, _ in rows] == [shown for _, shown in rows]
    assert [counted(count, "shard") for count in (0, 1, 2_000)] == [
        "0 shards",
        "1 shard",
        "2,000 shards",
    ]


@pytest.mark.parametrize("text", ["", "MB", "-5MB", "5XB", "0", "0.1B", "1e3"])
def test_what_is_no_size_is_refused_with_the_form(text):
    with pytest.raises(
        OptionError, match="is not a size in bytes. Write a number and a unit: 500KB"
    ):
        parse_bytes(text)


@pytest.mark.parametrize("split", ["", "Train", "manifest2", "features", "a-b", "../x", "1a"])
def test_split_names_that_would_confuse_readers_are_refused(split):
    with pytest.raises(OptionError, match="cannot be a split's name"):
        validate_split(split)


def test_a_schema_survives_json_and_invalid_ones_are_refused():
    schema = Schema(
        "s", {"a": Feature("bytes", (None,), True, "text", "doc"), "b": Feature("int64", (2, 3))}
    )
    grey = Schema("s", {"a": Feature("bytes", content="image", channels=1)})
    file = JsonFile("schema", SchemaError, "")
    assert [file.typed(s.to_json(), Schema) for s in (schema, grey)] == [schema, grey]
    assert [f.num_values for f in schema.features.values()] == [None, 6]
    assert "channels" not in schema.to_json()["features"]["a"]
    with pytest.raises(SchemaError, match="dtype 'int32' is not one of bytes, int64, float32"):
        Feature("int32")
    with pytest.raises(SchemaError, match=r"must be the only one: \(None,\)"):
        Feature("int64", (None, 3))
    with pytest.raises(SchemaError, match="must be raw; only bytes may also be text or image"):
        Feature("int64", content="image")
    with pytest.raises(
        SchemaError, match="channels 2 of content image: must be 1, 3 or 4, and only for an image"
    ):
        Feature("bytes", content="image", channels=2)


def test_every_public_error_is_an_infeed_error():
    classes = [getattr(errors, name) for name in errors.__all__ if name[0].isupper()]
    assert all(issubclass(c, errors.InfeedError) for c in classes)


@pytest.mark.slow
def test_the_shard_format_and_storage_load_neither_tensorflow_nor_jax_nor_beam():
    code = (
        "import sys, pkgutil, importlib, pipeline.shards, pipeline.storage\n"
        "for p in (pipeline.shards, pipeline.storage):\n"
        "    for m in pkgutil.iter_modules(p.__path__): importlib.import_module(f'{p.__name__}.{m.name}')\n"
        "heavy = {'tensorflow', 'jax', 'apache_beam', 'PIL'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@dataclass(frozen=True)
class Inner:
    kind: Literal["one", "two"]
    sizes: tuple[Count | None, ...] = field(default=(), metadata=REQUIRED)
    note: str = ""

    def __post_init__(self):
        if self.note == "bad":
            raise ValueError("a note may not be bad.")


@dataclass(frozen=True)
class Outer:
    inner: Mapping[str, Inner]
    maybe: Inner | None = None
    weight: float = 1.0
    some: NonEmpty[Inner] = (Inner("one"),)


FILE = JsonFile("dir/x.json", ManifestError, "Copy it again.")
INNER = {"kind": "one", "sizes": [1, None]}


def test_valid_json_is_read_with_default_values():
    read = FILE.read(json.dumps({"inner": {"a/b": INNER}, "weight": 2}), Outer)
    assert read == Outer({"a/b": Inner("one", (1, None))}, None, 2.0)


def test_names_that_are_not_utf8_are_read():
    assert FILE.read('{"\\udc80": "\\udcff"}', dict[str, str]) == {"\udc80": "\udcff"}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "it: expected object, got array."),
        ({}, "the key inner is missing."),
        (
            {"inner": {}, "wieght": 1},
            "the key wieght is unknown. Did you mean 'weight'? Known: inner, maybe, some, weight.",
        ),
        ({"inner": {}, "weight": "1"}, 'weight is "1": expected float, got str.'),
        ({"inner": {}, "maybe": 5}, "maybe is 5: expected object | null, got int."),
        ({"inner": {"a": None}}, "inner.a is null: expected object, got null."),
        ({"inner": {"a/b": {"kind": "one"}}}, 'the key inner["a/b"].sizes is missing.'),
        (
            {"inner": {"a": INNER | {"kind": "three"}}},
            'inner.a.kind is "three": expected one of one, two.',
        ),
        (
            {"inner": {"a": INNER | {"kind": "\udc80"}}},
            'inner.a.kind is "\\udc80": expected one of one, two.',
        ),
        ({"inner": {"a": INNER | {"kind": 3}}}, "inner.a.kind is 3: expected str, got int."),
        ({"inner": {"a": INNER | {"sizes": {}}}}, "inner.a.sizes: expected array, got object."),
        (
            {"inner": {"a": INNER | {"sizes": [1, True]}}},
            "inner.a.sizes[1] is true: expected int | null, got bool.",
        ),
        (
            {"inner": {"a": INNER | {"sizes": [1.0]}}},
            "inner.a.sizes[0] is 1.0: expected int | null, got float.",
        ),
        ({"inner": {}, "some": []}, "some: expected array of length >= 1."),
        ({"inner": {}, "some": [INNER, 5]}, "some[1] is 5: expected object, got int."),
        (
            {"inner": {"a": INNER | {"sizes": [2**63]}}},
            f"inner.a.sizes[0] is {2**63}: expected int <= {2**63 - 1}.",
        ),
        ({"inner": {"a": INNER | {"sizes": [-1]}}}, "inner.a.sizes[0] is -1: expected int >= 0."),
        ({"inner": {"a": INNER | {"note": "bad"}}}, "inner.a: a note may not be bad."),
        (
            {"inner": {"a": INNER | {"\udc80": 1}}},
            'the key inner.a["\\udc80"] is unknown. Known: kind, note, sizes.',
        ),
        ({"inner": {}, "weight": "x" * 999}, f'weight is "{"x" * 59}: expected float, got str.'),
    ],
)
def test_invalid_json_values_are_one_line_with_file_path_value_and_remedy(value, said):
    with pytest.raises(ManifestError) as e:
        FILE.read(json.dumps(value), Outer)
    assert str(e.value) == f"dir/x.json: {said} Copy it again."


@dataclass(frozen=True)
class Flat:
    name: str
    size: Count = 0


def test_unknown_keys_of_many_small_objects_are_found():
    kind = Mapping[str, tuple[Flat, ...]]
    parts = [{"name": str(number)} for number in range(9)]
    assert FILE.typed({"all": parts}, kind)["all"] == tuple(Flat(str(i)) for i in range(9))
    parts[5]["siez"] = 1
    for part in parts[:5]:
        part["size"] = 1
    with pytest.raises(ManifestError, match=r"all\[5\]\.siez is unknown. Did you mean 'size'"):
        FILE.typed({"all": parts}, kind)


@pytest.mark.parametrize("text", ["", "{", b"\xff", "[" * 100_000])
def test_what_is_not_json_is_one_line(text):
    with pytest.raises(ManifestError, match=r"^dir/x\.json is not JSON: .*\. Copy it again\.$"):
        FILE.read(text, Outer)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"inner": {}, "weight": 1, "weight": 2}', '"weight"'),
        ('{"inner": {"a/b": {"kind": "one", "sizes": [], "kind": "one"}}}', '"kind"'),
        ('{"inner": {}, "inner": {}}', '"inner"'),
        ('{"inner": {"\\u001b[2J": 1, "\\u001b[2J": 1}}', '"\\u001b[2J"'),
    ],
)
def test_a_key_that_is_listed_twice_is_one_line_and_never_the_last_one(text, key):
    with pytest.raises(ManifestError) as e:
        FILE.read(text, Outer)
    assert str(e.value) == f"dir/x.json: an object has the key {key} twice. Copy it again."
