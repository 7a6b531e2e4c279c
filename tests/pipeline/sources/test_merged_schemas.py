"""What is said of records that came without a schema."""

import itertools
import json

import pytest
import tensorflow as tf

from pipeline.errors import OptionError, SchemaError
from pipeline.shards.example_decoding import example_shapes
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.sources.merged_schemas import SchemaGuess, merged_schema, read_labels, read_schema
from pipeline.sources.record_checks import schema_problems

JPEG = b"\xff\xd8\xff\xe0 and so on"


LISTS = {bytes: ("bytes_list", tf.train.BytesList), float: ("float_list", tf.train.FloatList)}
LISTS[int] = ("int64_list", tf.train.Int64List)


def record(**values):
    """An Example as TensorFlow encodes it; () is an empty list of floats, None a feature without a list."""
    example = tf.train.Example()
    for key, value in values.items():
        feature = example.features.feature[key]
        items = value if isinstance(value, list) else [value]
        if value == ():
            feature.float_list.SetInParent()
        elif value is not None:
            name, kind = LISTS[type(items[0])]
            getattr(feature, name).CopyFrom(kind(value=items))
    return example.SerializeToString()


def guessed(*payloads):
    guess = SchemaGuess()
    for payload in payloads:
        guess.add(payload)
    return guess.schema


RECORDS = [
    record(image=JPEG, text="ä b\n".encode(), raw=b"\0\1", label=-7, box=[1.0, 2.0], none=(), w=[1.0, 2.0, 3.0]),
    record(image=JPEG, text=b"", raw=b"text", label=300, box=1.0, none=(), w=[1.0, 2.0, 4.0], rare=1),
    record(image=JPEG, text=b"c", raw=b"\xff", label=0, box=None, none=(), w=[1.0, 2.0, 4.0]),
]  # fmt: skip


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_schema_is_what_all_records_have_in_common_in_any_order(order):
    assert guessed(*(RECORDS[i] for i in order)).features == {
        "box": Feature("float32", (None,), optional=True),
        "image": Feature("bytes", content="image"),
        "label": Feature("int64"),
        "none": Feature("float32", (None,)),
        "rare": Feature("int64", optional=True),
        "raw": Feature("bytes"),
        "text": Feature("bytes", content="text"),
        "w": Feature("float32", (3,)),
    }


def test_every_record_fits_the_schema_that_was_seen_in_it():
    schema = guessed(*RECORDS)
    assert [list(schema_problems(schema, example_shapes(each))) for each in RECORDS] == [[], [], []]


@pytest.mark.parametrize(
    "payload",
    [
        b"just a line",
        b"\xff" * 9,
        record(label=1) + b"\x12\x00",  # a SequenceExample of this context
    ],
)
def test_one_record_that_is_no_example_makes_the_schema_opaque(payload):
    assert guessed(RECORDS[0], payload, RECORDS[1]).opaque
    assert guessed(payload).opaque


def test_a_feature_of_two_kinds_is_named():
    with pytest.raises(
        SchemaError, match=r"'a' is float32 and int64 in different records.* --schema-file"
    ):
        guessed(record(a=1), record(a=1.0))


def test_a_merged_schema_keeps_what_both_schemas_agree_on():
    one = Schema("s", {"a": Feature("int64"), "b": Feature("bytes", content="text", doc="word")})
    other = Schema("s", {"b": Feature("bytes", (2,))})
    assert merged_schema([one, other]).features == {
        "a": Feature("int64", optional=True),
        "b": Feature("bytes", (None,), doc="word"),
    }
    assert merged_schema([one, other]) == merged_schema([other, one, one])


def test_a_schema_file_is_a_schema_or_a_manifest(tmp_path):
    schema = guessed(*RECORDS)
    for number, data in enumerate((schema.to_json(), {"schema": schema.to_json(), "splits": {}})):
        (tmp_path / f"{number}.json").write_text(json.dumps(data))
        assert read_schema(str(tmp_path / f"{number}.json")) == schema
    (tmp_path / "bad.json").write_text('{"name": "x"}')
    with pytest.raises(
        OptionError, match=r"--schema-file=.*bad.json: .*features.* Give a manifest.json"
    ):
        read_schema(str(tmp_path / "bad.json"))


def test_labels_name_an_int64_feature(tmp_path):
    for text in ("cat\ngrey eel\n", "\ufeffcat\r\ngrey eel\r\n\r\n"):
        (tmp_path / "names").write_text(text, "utf-8")
        assert read_labels(f"{tmp_path}/names", "label", 1, guessed(*RECORDS)) == Labels(
            "label", 1, ("cat", "grey eel")
        )
    with pytest.raises(
        OptionError, match="--label-key=text is not an int64 feature. Known: label, rare"
    ):
        read_labels(f"{tmp_path}/names", "text", 0, guessed(*RECORDS))
    (tmp_path / "names").write_bytes(b"caf\xe9\n")
    with pytest.raises(
        OptionError, match=r"--labels-file=.*/names is not UTF-8: .* position 3: .*Save it as UTF-8"
    ):
        read_labels(f"{tmp_path}/names", "label", 1, guessed(*RECORDS))
