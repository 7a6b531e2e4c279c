import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_rng import rng_of
from sweep import examples

from pipeline.decoding.decode import Decoder
from pipeline.decoding.padding import PadTo
from pipeline.errors import SchemaError
from pipeline.ops import MultiHot, OneHot, RequireLabel
from pipeline.shards.example import encode_example
from pipeline.shards.schema import Feature, Schema

SCHEMA = Schema(
    "labels",
    {
        "many": Feature("int64", (None,), optional=True),
        "pair": Feature("int64", (2,), optional=True),
        "one": Feature("int64", optional=True),
    },
)
ONE = Schema("one", {"x": Feature("int64")})


def hot(decoder: Decoder, *records: dict, schema: Schema = SCHEMA) -> list[list[float]]:
    seeds = np.zeros((len(records), decoder.num_ops, 2), np.int32)
    index = np.arange(len(records), dtype=np.int32)
    return decoder([encode_example(schema, record) for record in records], seeds, index)[
        "labels"
    ].tolist()


@settings(max_examples=examples(50))
@given(
    st.integers(1, 9), st.integers(-3, 3), st.sampled_from(["uint8", "int32", "int64"]), st.data()
)
def test_one_hot_sets_exactly_the_label(num_classes, base, dtype, data):
    least = max(base, 0) if dtype == "uint8" else base
    label = data.draw(st.integers(least, max(least, base + num_classes - 1)))
    op, features = OneHot("x", num_classes, base), {"x": np.array(label, dtype)[()]}
    if label >= base + num_classes:
        with pytest.raises(SchemaError, match=rf"label outside .*{label}"):
            op(features, rng_of())
    else:
        value = op(features, rng_of())["labels"]
        assert value.dtype == np.float32
        assert value.tolist() == [float(base + i == label) for i in range(num_classes)]


@settings(max_examples=examples(50))
@given(st.integers(1, 9), st.integers(-3, 3), st.data())
def test_multi_hot_sets_exactly_the_labels_of_a_record(num_classes, base, data):
    labels = data.draw(st.lists(st.integers(base, base + num_classes - 1), max_size=6))
    value = MultiHot("x", num_classes, base)({"x": np.array(labels, np.int64)}, rng_of())["labels"]
    assert value.dtype == np.float32
    assert value.tolist() == [float(base + i in labels) for i in range(num_classes)]


@pytest.mark.parametrize(
    "op", [MultiHot("many", 3, base=1), MultiHot("pair", 3, base=1, ignore=0)], ids=repr
)
def test_a_record_without_labels_is_all_zeros(op):
    assert hot(Decoder(SCHEMA, 2, ops=[op]), {op.key: [3, 1]}, {}) == [[1, 0, 1], [0, 0, 0]]


def test_multi_hot_ignores_the_padding_of_labels():
    op, pad_to = MultiHot("many", 3, ignore=-1), {"many": PadTo(4, value=-1)}
    decoder = Decoder(SCHEMA, 3, ops=[op], pad_to=pad_to)
    assert hot(decoder, {"many": [2, 0]}, {}, {"many": [1] * 4}) == [
        [1, 0, 1],
        [0, 0, 0],
        [0, 1, 0],
    ]


@pytest.mark.parametrize("label", [0, 4, -1, 2**40])
def test_a_label_out_of_range_is_an_error_that_names_it(label):
    decoder = Decoder(SCHEMA, 1, ops=[MultiHot("many", 3, base=1)])
    with pytest.raises(
        SchemaError,
        match=rf"^'many' has a label outside 1\.\.3, the classes of MultiHot.*: {label}\.$",
    ):
        hot(decoder, {"many": [2, label]})
    with pytest.raises(
        SchemaError, match=rf"^'x' has a label outside 1\.\.3, the classes of OneHot.*: {label}\.$"
    ):
        hot(Decoder(ONE, 1, ops=[OneHot("x", 3, base=1)]), {"x": label}, schema=ONE)


def test_a_record_without_a_required_label_is_an_error_that_says_why_it_needs_one():
    op = RequireLabel("x", "Mixing needs it.")
    assert op({"x": np.int64(3)}, rng_of()) == {}
    with pytest.raises(
        SchemaError, match=r"^the record has no label: 'x' is -1\. Mixing needs it\.$"
    ):
        hot(Decoder(ONE, 1, ops=[op]), {"x": -1}, schema=ONE)
