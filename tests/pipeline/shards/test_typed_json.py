"""A JSON file of ours reads as its type, or is one line that leads to the key."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pytest

from pipeline.errors import ManifestError
from pipeline.shards.typed_json import REQUIRED, Count, JsonFile, NonEmpty


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
        ({"inner": {"a": INNER | {"kind": "three"}}}, 'inner.a.kind is "three": expected one of one, two.'),
        ({"inner": {"a": INNER | {"kind": "\udc80"}}}, 'inner.a.kind is "\\udc80": expected one of one, two.'),
        ({"inner": {"a": INNER | {"kind": 3}}}, "inner.a.kind is 3: expected str, got int."),
        ({"inner": {"a": INNER | {"sizes": {}}}}, "inner.a.sizes: expected array, got object."),
        ({"inner": {"a": INNER | {"sizes": [1, True]}}}, "inner.a.sizes[1] is true: expected int | null, got bool."),
        ({"inner": {"a": INNER | {"sizes": [1.0]}}}, "inner.a.sizes[0] is 1.0: expected int | null, got float."),
        ({"inner": {}, "some": []}, "some: expected array of length >= 1."),
        ({"inner": {}, "some": [INNER, 5]}, "some[1] is 5: expected object, got int."),
        ({"inner": {"a": INNER | {"sizes": [2**63]}}}, f"inner.a.sizes[0] is {2**63}: expected int <= {2**63 - 1}."),
        ({"inner": {"a": INNER | {"sizes": [-1]}}}, "inner.a.sizes[0] is -1: expected int >= 0."),
        ({"inner": {"a": INNER | {"note": "bad"}}}, "inner.a: a note may not be bad."),
        ({"inner": {"a": INNER | {"\udc80": 1}}}, 'the key inner.a["\\udc80"] is unknown. Known: kind, note, sizes.'),
        ({"inner": {}, "weight": "x" * 999}, f'weight is "{"x" * 59}: expected float, got str.'),
    ],
)
def test_invalid_json_values_are_one_line_with_file_path_value_and_remedy(value, said):
    with pytest.raises(ManifestError) as e:
        FILE.read(json.dumps(value), Outer)
    assert str(e.value) == f"dir/x.json: {said} Copy it again."


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
