"""Features that are kept, dropped, renamed and cast, and what a batch has of them."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_rng import rng_of
from sweep import examples

from pipeline.decoding.decode import Decoder
from pipeline.decoding.padding import PadTo
from pipeline.errors import OptionError, SchemaError
from pipeline.ops import Cast, Drop, Keep, MultiHot, Rename
from pipeline.shards.example import encode_example
from pipeline.shards.schema import Feature, Schema
from pipeline.spec import ArraySpec

SCHEMA = Schema(
    "features",
    {
        "a": Feature("int64"),
        "b": Feature("float32"),
        "name": Feature("bytes"),
        "many": Feature("int64", (None,), optional=True),
        "rank": Feature("int64", optional=True),
        "_hidden": Feature("int64"),
    },
)
RECORD = {"a": 7, "b": 0.5, "name": b"x", "many": [1, 2], "rank": 3, "_hidden": 9}


def decoded(*ops, record=RECORD, schema=SCHEMA, **options):
    decoder = Decoder(schema, 1, ops=ops, **options)
    seeds = np.zeros((1, decoder.num_ops, 2), np.int32)
    batch = decoder([encode_example(schema, record)], seeds, np.zeros(1, np.int32))
    assert batch.keys() == decoder.spec.keys() - {"_mask", "_index", "_crc"}
    return {key: value[0].tolist() for key, value in batch.items()}


@pytest.mark.parametrize(
    ("ops", "left"),
    [
        ([], {"a": 7, "b": 0.5, "rank": 3}),
        ([Keep(["a", "name"])], {"a": 7}),
        ([Drop(["a", "name", "many"])], {"b": 0.5, "rank": 3}),
        ([Rename({"a": "label"})], {"label": 7, "b": 0.5, "rank": 3}),
        ([Rename({"a": "b", "b": "a"})], {"a": 0.5, "b": 7, "rank": 3}),
        ([Drop(["b"]), Rename({"a": "b"})], {"b": 7, "rank": 3}),
        ([Rename({"a": "c"}), Rename({"b": "a"}), Keep(["a"])], {"a": 0.5}),
        ([Rename({"_hidden": "seen"}), Drop(["a", "b", "rank"])], {"seen": 9}),
    ],
)
def test_a_batch_has_the_features_that_remain_after_all_ops(ops, left):
    assert decoded(*ops) == left
    key = min(left)
    assert decoded(*ops, keys=[key]) == {key: left[key]}


def test_a_renamed_feature_keeps_its_padding_and_can_be_read():
    rename = Rename({"many": "labels"})
    assert decoded(rename, pad_to={"many": PadTo(3, value=-1)}, keys=["labels"]) == {
        "labels": [1, 2, -1]
    }
    assert decoded(rename, MultiHot("labels", 4, into="hot"), keys=["hot"]) == {"hot": [0, 1, 1, 0]}


def test_a_dropped_feature_is_not_parsed():
    small = Schema("small", {"a": SCHEMA.features["a"]})  # parsing anything else would be an error
    decoder = Decoder(SCHEMA, 1, ops=[Drop(["b", "rank"])])
    batch = decoder(
        [encode_example(small, {"a": 7})], np.zeros((1, 1, 2), np.int32), np.zeros(1, np.int32)
    )
    assert batch == {"a": [7]}


@dataclass(frozen=True)
class Sum:
    """A user's op, which knows nothing of dropping."""

    reads: tuple[str, ...] = ("a", "b")

    def output_spec(self, specs):
        return {"sum": ArraySpec((), np.dtype(np.float32))}

    def __call__(self, features, rng):
        return {"sum": np.float32(sum(features[key] for key in self.reads))}


@dataclass(frozen=True)
class Consuming(Sum):
    """A user's op that drops what it has read."""

    def dropped_features(self, specs):
        return self.reads


def test_user_ops_may_drop_features_or_not_support_dropping():
    assert decoded(Sum(), Drop(["a"])) == {"b": 0.5, "rank": 3, "sum": 7.5}
    assert decoded(Consuming()) == {"rank": 3, "sum": 7.5}
    with pytest.raises(
        OptionError, match=r"Sum\(reads=\('a', 'b'\)\) reads 'a', which Consuming\(.*\) dropped"
    ):
        Decoder(SCHEMA, 1, ops=[Consuming(), Sum()])


@pytest.mark.parametrize(
    ("ops", "options", "text"),
    [
        (
            [Drop(["a"]), Cast("a", "int32")],
            {},
            r"^Cast\(.*\) reads 'a', which Drop\(keys=\('a',\)\) dropped\. Put it",
        ),
        ([Keep(["b"]), Cast("a", "int32")], {}, r"reads 'a', which Keep\(keys=\('b',\)\) dropped"),
        ([Rename({"a": "c"}), Cast("a", "int32")], {}, r"reads 'a', which Rename\(.*\) dropped"),
        ([Drop(["a"]), Drop(["a"])], {}, r"'a', which Drop\(keys=\('a',\)\) dropped"),
        (
            [Drop(["a"])],
            {"keys": ["a"]},
            r"keys has 'a', which Drop\(keys=\('a',\)\) dropped\. Leave it out of keys",
        ),
        (
            [Rename({"a": "c"})],
            {"keys": ["a"]},
            r"keys has 'a', which Rename\(names=\(\('a', 'c'\),\)\) dropped",
        ),
        ([Keep(["nmae"])], {}, r"reads 'nmae', which is neither .* Did you mean 'name'\?"),
        ([Drop(["nmae"])], {}, r"reads 'nmae', which is neither .* Did you mean 'name'\?"),
        ([Drop(["_mask"])], {}, "'_mask', which is neither in the records"),
        ([Rename({"a": "b"})], {}, r"a feature 'b' already exists\. Drop\(\['b'\]\) before it"),
        ([Rename({"a": "_mask"})], {}, "sets '_mask': names that start with _ are reserved"),
    ],
)
def test_a_dropped_or_duplicate_feature_is_an_error_that_names_the_op(ops, options, text):
    with pytest.raises(OptionError, match=text):
        Decoder(SCHEMA, 1, ops=ops, **options)


INTEGERS = st.sampled_from(["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"]).map(np.dtype)


@settings(max_examples=examples(80))
@given(INTEGERS, INTEGERS, st.data())
def test_casting_an_integer_keeps_its_value_or_fails(old, new, data):
    values = st.integers(np.iinfo(old).min, np.iinfo(old).max) | st.integers(0, 100)
    value = data.draw(values)
    features = {"x": np.array([value], old)}
    if np.iinfo(new).min <= value <= np.iinfo(new).max:
        assert Cast("x", new)(features, rng_of())["x"].tolist() == [value]
    else:
        with pytest.raises(SchemaError, match=f"has a value that {new.name} cannot hold"):
            Cast("x", new)(features, rng_of())


@pytest.mark.parametrize(
    ("value", "dtype", "cast"),
    [
        (np.float32([0.5, 1.5, 254.6]), "uint8", [0, 2, 255]),
        (np.float32([-0.4, -2.5]), "int16", [0, -2]),
        (np.float64([1e300]), "float32", None),
        (np.float32([70000]), "float16", None),
        (np.float32([np.inf, 2]), "float64", [np.inf, 2]),
        (np.float32([255.6]), "uint8", None),
        (np.float32([np.nan]), "int32", None),
        (np.float32([2**31]), "int32", None),
        (np.float16([-np.inf]), "int64", None),
        (np.float32([]), "int8", []),
        (np.int64([0, 5]), "bool", [False, True]),
        (np.array([True, False]), "float32", [1, 0]),
        (np.array([True, False]), "uint8", [1, 0]),
        (np.uint8([[7]]), np.float32, [[7]]),
    ],
)
def test_a_cast_rounds_and_never_wraps_around(value, dtype, cast):
    if cast is None:
        with pytest.raises(SchemaError, match="cannot hold"):
            Cast("x", dtype)({"x": value}, rng_of())
    else:
        made = Cast("x", dtype)({"x": value}, rng_of())["x"]
        assert made.dtype == dtype
        assert made.tolist() == cast


def test_equal_ops_are_equal_however_they_are_written():
    assert Rename({"a": "b"}) == Rename([("a", "b")])
    assert Keep(["a", "b"]) == Keep(("a", "b"))
    assert Keep(["a"]) != Drop(["a"])
    assert Cast("a", np.float32) == Cast("a", "f4") == Cast("a", np.dtype("float32"))
