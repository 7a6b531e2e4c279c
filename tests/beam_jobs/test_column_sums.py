"""Sums of columns by vectors against sums of Python's integers."""

import itertools
import json
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sweep import examples

from beam_jobs.rows import column_sums
from beam_jobs.rows.column_sums import ColumnSums, RecordSums
from pipeline.errors import SchemaError
from pipeline.shards.example import encode_example
from pipeline.shards.schema import Feature, Schema

LARGEST, LEAST = 3.4028234663852886e38, 2.0**-149
FLOATS = st.floats(width=32, allow_infinity=False) | st.sampled_from(
    [0.0, -0.0, LEAST, -LEAST, 2.0**-126, 2.0**-126 - LEAST, 1.0, LARGEST, -LARGEST, float("nan")]
)
INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [
        -(2**63),
        2**63 - 1,
        -1,
        0,
        *(sign * 2**bit - low for sign in (-1, 1) for bit in (22, 44) for low in (0, 1)),
    ]
)
ARRAYS = arrays.arrays(np.float32, st.integers(0, 60), elements=FLOATS) | st.sampled_from(
    [np.int64, np.int32]
).flatmap(
    lambda dtype: arrays.arrays(
        dtype,
        st.integers(0, 60),
        elements=INTEGERS if dtype is np.int64 else st.integers(-(2**31), 2**31 - 1),
    )
)


def one_by_one(values, classes):
    """The sums with a Python integer for each value."""
    present = [value for value in values.tolist() if (value >= 0 if classes else value == value)]
    counts = len(present), len(values) - len(present)
    if classes:
        return ColumnSums(*counts, classes=dict(Counter(map(str, present))))
    bits = 149
    scaled = [
        int(np.ldexp(value, bits)) if isinstance(value, float) else value << bits
        for value in present
    ]
    ends = (min(present), max(present)) if present else ()
    return ColumnSums(*counts, sum(scaled), sum(value * value for value in scaled), *ends)


@settings(max_examples=examples(900), deadline=None)
@given(ARRAYS, st.booleans(), st.sampled_from([1, 7, 1 << 19]))
def test_sums_by_vectors_are_those_of_python_integers(values, classes, at_once):
    classes = classes and values.dtype.kind == "i"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_sums, "_EXACT", at_once)
        sums = ColumnSums.of(values, classes=classes)
    assert sums == one_by_one(values, classes)
    json.dumps(vars(sums))  # for the receipt


@pytest.mark.parametrize(
    "value", [np.int64(2**63 - 1), np.int64(-(2**63)), np.int64(2**44 - 1), np.float32(LARGEST), np.float32(-LEAST), np.float32(1 - 2**-24)], ids=str
)  # fmt: skip
def test_sums_of_many_equal_values_overflow_nowhere(value):
    values = np.full(600_000, value)
    (one, many) = (ColumnSums.of(each, classes=False) for each in (values[:1], values))
    assert (many.total, many.squares) == (600_000 * one.total, 600_000 * one.squares)


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_an_infinite_number_is_an_error_that_names_its_column(value):
    schema = Schema("table", {"price": Feature("float32"), "size": Feature("float32")})
    sums = RecordSums(SimpleNamespace(schema=schema, class_names={}))
    with pytest.raises(SchemaError, match="^'price' has an infinite number, so it has no mean"):
        sums.add([encode_example(schema, {"price": value, "size": 1.0})])
        sums.columns()


@pytest.mark.parametrize("batch_bytes", [1, 200, 1 << 20])
def test_records_added_together_give_the_sums_of_records_added_alone(batch_bytes, monkeypatch):
    monkeypatch.setattr(column_sums, "_BATCH_BYTES", batch_bytes)
    features = {
        "x": Feature("float32"),
        "n": Feature("int64", (None,)),
        "c": Feature("int64"),
        "t": Feature("bytes"),
    }
    schema = Schema("table", features)
    converter = SimpleNamespace(schema=schema, class_names={"c": ("a", "b")})
    payloads = [
        encode_example(schema, {"x": i / 7, "n": [*range(i % 4)], "c": i % 3 - 1, "t": bytes(i)})
        for i in range(50)
    ]
    alone, together = RecordSums(converter), RecordSums(converter)
    for payload in payloads:
        alone.add([payload])
    for begin, end in itertools.pairwise((0, 0, 20, 50)):
        together.add(payloads[begin:end])
    assert alone.columns() == together.columns()
    assert alone.columns().keys() == {"x", "n", "c"}
    assert alone.columns()["c"].classes == {"0": 17, "1": 16}
    nothing = RecordSums(SimpleNamespace(schema=schema))
    nothing.add(payloads)
    assert nothing.columns() == {}
