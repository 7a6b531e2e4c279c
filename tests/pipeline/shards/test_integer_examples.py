"""Records of integers, encoded many together."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sweep import examples

from pipeline.errors import SchemaError
from pipeline.shards.example import encode_example, encode_integer_examples
from pipeline.shards.schema import Feature, Schema

SCHEMA = Schema("rows", {"b": Feature("int64", (3,)), "a": Feature("int64"), "ä": Feature("int64", (2, 2))})
NUMBERS = st.sampled_from([0, 1, 127, 128, 16_383, 16_384, 2**21 - 1, 2**21, 2**28 - 1])


@st.composite
def columns(draw):
    records = draw(st.integers(0, 5))
    shapes = {key: (records, *feature.shape) for key, feature in SCHEMA.features.items()}
    return {key: draw(arrays.arrays(np.int64, shape, elements=NUMBERS)) for key, shape in shapes.items()}


@given(columns())
@settings(max_examples=examples(200), deadline=None)
def test_columns_are_encoded_to_the_bytes_of_single_examples(columns):
    records = range(len(columns["a"]))
    alone = (
        {key: values[i] if values[i].shape else int(values[i]) for key, values in columns.items()} for i in records
    )
    assert encode_integer_examples(SCHEMA, columns) == [encode_example(SCHEMA, values) for values in alone]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": np.array([2**28])}, r"'a' holds 268435456 to 268435456; allowed are 0 to 2\^28 - 1\."),
        ({"a": np.array([-1])}, "'a' holds -1 to -1; allowed"),
        ({"b": np.zeros((1, 2), int)}, r"'b' is int64 \[1, 2\]; schema 'rows' needs integers \[records, 3\]"),
        ({"b": None}, r"'b' is missing; schema 'rows' needs integers \[records, 3\]"),
        ({"c": np.zeros(1, int)}, "'c' is not in schema 'rows'"),
    ],
)
def test_columns_that_do_not_fit_the_schema_are_an_error(change, message):
    columns = {"a": np.zeros(1, int), "b": np.zeros((1, 3), int), "ä": np.zeros((1, 2, 2), int)} | change
    with pytest.raises(SchemaError, match=message):
        encode_integer_examples(SCHEMA, {key: values for key, values in columns.items() if values is not None})
