"""The encoder of many records against that of one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sweep import examples

from pipeline.errors import SchemaError
from pipeline.shards import example_block
from pipeline.shards.example import Ragged, encode_example
from pipeline.shards.example_block import Blobs, encode_examples
from pipeline.shards.schema import Feature, Schema

# varints of one to ten bytes
INTEGERS = st.sampled_from(
    [0, 1, 127, 128, 2**14 - 1, 2**14, 2**28, 2**32 - 1, 2**32, 2**56, 2**63 - 1, -1, -(2**63)]
)
FEW_INTEGERS = st.sampled_from([0, 3, 127])
SMALL_INTEGERS = st.integers(0, 2**14)
FLOATS = st.floats(width=32)  # also NaN, infinities, -0.0 and subnormals
SHAPES = st.sampled_from([(), (1,), (3,), (2, 2), (0,), (100,), (None,)])
SIZES = [0, 1, 20, 128, 256, 257, 5000]


def cut(records, sizes):
    ends = np.cumsum(sizes)
    assert (records.dtype, sizes.dtype) == (np.uint8, np.int64)
    assert len(records) == sizes.sum()
    return [records[end - size : end].tobytes() for end, size in zip(ends, sizes, strict=True)]


@st.composite
def blobs(draw, num_records):
    """Values out of shared data, in any order, also overlapping and at its end."""
    longest = draw(st.sampled_from(SIZES))
    data = np.frombuffer(draw(st.binary(min_size=20, max_size=20)) * 300, np.uint8)
    sizes = draw(arrays.arrays(np.int64, num_records, elements=st.integers(0, longest)))
    last = draw(arrays.arrays(np.int64, num_records, elements=st.integers(0, len(data) - longest)))
    begins = draw(st.sampled_from([last, len(data) - sizes]))
    return Blobs(data, begins, sizes)


@st.composite
def numbers(draw, dtype, num_records, shape):
    elements = (
        FLOATS
        if dtype == "float32"
        else draw(st.sampled_from([INTEGERS, FEW_INTEGERS, SMALL_INTEGERS]))
    )
    narrow = np.int32 if elements is SMALL_INTEGERS else dtype
    if shape == (None,):
        lengths = draw(
            arrays.arrays(
                np.int64, num_records, elements=st.integers(0, draw(st.sampled_from([0, 3, 90])))
            )
        )
        return Ragged(draw(arrays.arrays(narrow, int(lengths.sum()), elements=elements)), lengths)
    return draw(arrays.arrays(narrow, (num_records, *shape), elements=elements))


@st.composite
def tables(draw):
    """A schema, the columns of up to 9 records, and the number of rows of a block."""
    num_records = draw(st.integers(0, 9))
    features, columns = {}, {}
    for key in draw(
        st.lists(st.text(max_size=20) | st.just("k" * 200), min_size=1, max_size=6, unique=True)
    ):
        dtype = draw(st.sampled_from(["bytes", "int64", "float32"]))
        shape = () if dtype == "bytes" else draw(SHAPES)
        features[key] = Feature(dtype, shape)
        columns[key] = draw(
            blobs(num_records) if dtype == "bytes" else numbers(dtype, num_records, shape)
        )
    return Schema("random", features), columns, num_records, draw(st.sampled_from([1, 4, 4096]))


def record(columns, row):
    values = {}
    for key, column in columns.items():
        if isinstance(column, Blobs):
            begin = column.begins[row]
            values[key] = column.data[begin : begin + column.sizes[row]].tobytes()
        else:
            values[key] = (
                column.rows()[row] if isinstance(column, Ragged) else column[row : row + 1]
            )
    return values


@settings(max_examples=examples(600), deadline=None)
@given(tables())
def test_many_records_are_encoded_to_the_bytes_of_each(table):
    schema, columns, num_records, block_rows = table
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(example_block, "_BLOCK_ROWS", block_rows)
        patch.setattr(example_block, "_INTEGERS_AT_ONCE", 7 * block_rows)
        records = cut(*encode_examples(schema, columns))
    assert records == [encode_example(schema, record(columns, row)) for row in range(num_records)]


@pytest.mark.parametrize("dtype", ["int64", "float32"])
@pytest.mark.parametrize("longest", [1, 40, 5000])
def test_empty_lists_are_encoded_among_long_ones(dtype, longest):
    lengths = np.array([0, longest, 1, 0])
    columns = {"x": Ragged(np.full(lengths.sum(), 1000, dtype), lengths)}
    schema = Schema("s", {"x": Feature(dtype, (None,))})
    records = cut(*encode_examples(schema, columns))
    assert records == [encode_example(schema, record(columns, row)) for row in range(4)]


def test_blocks_of_their_usual_sizes_follow_each_other():
    rng = np.random.default_rng(0)
    num_records = 9000
    lengths = rng.integers(0, 9, num_records)
    sizes = rng.integers(0, 30, num_records)
    columns = {
        "a": rng.normal(size=num_records).astype(np.float32),
        "b": Ragged(rng.integers(-3, 2**40, lengths.sum()), lengths),
        "c": Blobs(rng.bytes(sizes.sum() + 1), np.cumsum(sizes) - sizes, sizes),
        "d": rng.integers(0, 2**20, num_records),
    }
    columns["c"] = columns["c"]._replace(data=np.frombuffer(columns["c"].data, np.uint8))
    features = {
        "a": Feature("float32"),
        "b": Feature("int64", (None,)),
        "c": Feature("bytes"),
        "d": Feature("int64"),
    }
    schema = Schema("rows", features)
    records = cut(*encode_examples(schema, columns))
    rows = columns["b"].rows()
    columns["b"] = np.array([*rows, None], object)[:-1]  # split once
    expected = [
        encode_example(
            schema, {**record({k: v for k, v in columns.items() if k != "b"}, row), "b": rows[row]}
        )
        for row in range(num_records)
    ]
    assert records == expected


def test_a_long_value_makes_no_matrix_of_the_longest(monkeypatch):
    padded = []
    compact = example_block._compact
    monkeypatch.setattr(
        example_block, "_compact", lambda parts, n: padded.extend(parts) or compact(parts, n)
    )
    sizes = np.ones(1000, np.int64)
    sizes[500] = 10**7
    blobs = Blobs(np.zeros(10**7, np.uint8), np.zeros_like(sizes), sizes)
    records, _ = encode_examples(Schema("s", {"x": Feature("bytes")}), {"x": blobs})
    assert len(records) > 10**7
    assert 0 < sum(each.nbytes for each, _ in padded) < 50_000


SCHEMA = Schema(
    "rows",
    {
        "a": Feature("int64"),
        "b": Feature("int64", (3,)),
        "r": Feature("float32", (None,)),
        "t": Feature("bytes"),
    },
)
ONES = np.ones(2, np.int64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b": None}, r"'b' is missing; schema 'rows' needs int64 \[2, 3\]\.$"),
        ({"a": None}, r"'a' is missing; schema 'rows' needs int64 \[2\]\.$"),
        ({"c": ONES}, r"'c' is not in schema 'rows' \(a, b, r, t\)\.$"),
        ({"b": np.zeros((2, 2), int)}, r"'b' is int64 \[2, 2\]; schema 'rows' needs int64 \[2, 3\]"),
        ({"b": np.zeros((3, 3), int)}, r"'b' is int64 \[3, 3\]; schema 'rows' needs int64 \[2, 3\]"),
        ({"a": np.zeros(2)}, r"'a' is float64 \[2\]; schema 'rows' needs int64 \[2\]"),
        ({"a": np.zeros(2, bool)}, r"'a' is bool \[2\]; "),
        ({"a": np.zeros(2, np.uint64)}, r"'a' is uint64 \[2\]; "),
        ({"a": np.zeros((), int)}, r"'a' is int64 \[\]; schema 'rows' needs int64 \[1\]"),
        ({"r": np.zeros((2, 3), np.float32)}, r"'r' is float32 \[2, 3\]; .* float32 \[2, None\]"),
        ({"r": Ragged(np.zeros(2), ONES)}, r"'r' is float64 \[2, None\]; .* float32 \[2, None\]"),
        ({"t": np.array([b"x", b"y"], object)}, r"'t' is object \[2\]; .* needs bytes \[2\]"),
        ({"t": Blobs(np.zeros(1, np.uint8), ONES[:1], ONES[:1])}, r"'t' is bytes \[1\]; .* \[2\]"),
    ],
    ids=str,
)  # fmt: skip
def test_columns_that_do_not_fit_the_schema_are_an_error(change, message):
    columns = {
        "a": ONES,
        "b": np.zeros((2, 3), int),
        "r": Ragged(np.zeros(2, np.float32), ONES),
        "t": Blobs(np.zeros(2, np.uint8), ONES, ONES),
    }
    assert len(encode_examples(SCHEMA, columns)[1]) == 2
    columns |= change
    with pytest.raises(SchemaError, match=message):
        encode_examples(SCHEMA, {key: each for key, each in columns.items() if each is not None})
