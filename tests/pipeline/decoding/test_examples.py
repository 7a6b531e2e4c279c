"""tf.train.Examples are parsed as protobuf parses them, whatever their writer and their batch, or refused."""

import itertools
import threading
import tracemalloc
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from example_wire import by_protobuf, damaged, entry, example, feature, field, odd_example
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import SWEEP, examples

from pipeline.decoding import examples as parsing
from pipeline.decoding.columns import Ragged
from pipeline.decoding.examples import ExampleParser
from pipeline.errors import SchemaError
from pipeline.shards.schema import Feature

DTYPES = {"bytes": object, "float32": np.float32}
LONG = "k" * 128, "k" * 16_384
VALUES = {
    "bytes": st.binary(max_size=9) | st.sampled_from([bytes(127), bytes(128), b"\0x" * 8192]),
    "float32": st.floats(width=32, allow_nan=False),
    "int64": st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 300),
}
KEYS = st.text(st.characters(codec="utf-8"), max_size=5) | st.sampled_from(LONG)
FEATURES = st.builds(
    Feature,
    st.sampled_from(sorted(VALUES)),
    st.sampled_from([(), (), (1,), (2, 3), (None,)]),
    optional=st.booleans(),
)


@pytest.fixture(scope="module", autouse=True, params=["joined", "not joined"])
def small_records(request):
    """All records are parsed as small ones are, or as photographs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parsing, "_LARGE", 0 if request.param == "not joined" else 1 << 30)
        yield


@st.composite
def batches(draw, same_order: bool) -> tuple[dict[str, Feature], list[dict[str, Any]]]:
    """Features, and the values of one to five records, which also have features that nobody asks for."""
    features = draw(st.dictionaries(KEYS, FEATURES, min_size=1, max_size=5))
    order = draw(st.permutations([*features, "other", "another"]))
    records = []
    for _ in range(draw(st.integers(1, 5))):
        values = {}
        for key in order if same_order else draw(st.permutations(order)):
            each = features.get(key, Feature("int64", (None,), optional=True))
            sizes = (
                {"max_size": 4}
                if each.num_values is None
                else dict.fromkeys(("min_size", "max_size"), each.num_values)
            )
            if not (each.optional and draw(st.booleans())):
                values[key] = draw(st.lists(VALUES[each.dtype], **sizes))
            elif draw(st.booleans()):
                values[key] = None
        records.append(values)
    return features, records


def parsed(
    parser: ExampleParser, features: Mapping[str, Feature], payloads: Sequence[bytes]
) -> list[dict[str, list]]:
    """Per record, the values of each feature. Their columns have the right shapes and dtypes."""
    columns = parser(payloads)
    assert columns.keys() == features.keys()
    rows: list[dict[str, list]] = [{} for _ in payloads]
    for key, column in columns.items():
        wanted = features[key]
        if isinstance(column, Ragged):
            assert wanted.num_values is None
            assert column.lengths.sum() == len(column.values)
            each, dtype = column.rows(), column.values.dtype
        else:
            each = np.asarray(column)
            assert each.shape == (len(payloads), *wanted.shape)
            dtype = each.dtype
        assert dtype in (
            (np.int32, np.int64) if wanted.dtype == "int64" else (DTYPES[wanted.dtype],)
        )
        assert len(each) == len(payloads)
        for row, values in zip(rows, each, strict=True):
            row[key] = (
                [values] if isinstance(values, bytes) else np.asarray(values).ravel().tolist()
            )
    return rows


def text(row: Mapping[str, list]) -> str:
    """NaN is equal to itself in it."""
    return repr(sorted(row.items()))


def result(parser: ExampleParser, payloads: Sequence[bytes]) -> Any:
    """The rows as text; None if they are refused."""
    try:
        return [*map(text, parsed(parser, MANY, payloads))]
    except SchemaError:
        return None


@settings(max_examples=examples(150))
@given(batches(same_order=True), st.randoms(use_true_random=False))
def test_records_of_one_writer_are_parsed_as_protobuf_parses_them(batch, random):
    features, records = batch
    payloads = [odd_example(random, features, values, odd=0) for values in records]
    expected = [by_protobuf(features, payload) for payload in payloads]
    parser = ExampleParser(features)
    for _ in range(2):
        assert parsed(parser, features, payloads) == expected
    assert parsed(parser, features, payloads[-1:]) == expected[-1:]
    assert parsed(parser, features, []) == []


@settings(max_examples=examples(150))
@given(
    batches(same_order=False), st.randoms(use_true_random=False), st.sampled_from([0.0, 0.05, 0.3])
)
def test_records_of_any_writers_in_a_batch_are_parsed_as_protobuf_parses_them(batch, random, odd):
    """Keys in any order and repeated, values before keys, unpacked and in parts, and fields of later versions."""
    features, records = batch
    payloads = [odd_example(random, features, values, odd) for values in records]
    assert parsed(ExampleParser(features), features, payloads) == [
        by_protobuf(features, each) for each in payloads
    ]


MANY = {
    "i": Feature("int64"),
    "pair": Feature("int64", (2,)),
    "ints": Feature("int64", (None,)),
    "f": Feature("float32"),
    "floats": Feature("float32", (None,), optional=True),
    "b": Feature("bytes"),
    "o": Feature("int64", optional=True),
}


def written(random: Random) -> bytes:
    values = {
        "i": [random.choice((0, 1, -1, 2**40, -(2**63), 2**63 - 1))],
        "pair": [random.randrange(2**28), random.randrange(300)],
        "ints": [
            random.randrange(-5, 10 ** random.randint(1, 18)) for _ in range(random.randrange(40))
        ],
        "f": [random.random()],
        "floats": [0.5] * random.randrange(5),
        "b": [random.randbytes(random.choice((0, 3, 100, 130, 300)))],
        "other": [1, 2, 300],
        **({"o": [5]} if random.random() < 0.7 else {}),
    }
    return odd_example(random, MANY, values, odd=random.choice((0, 0, 0.05)))


@settings(max_examples=1000 if SWEEP else 15)
@given(st.integers(0, 2**32))
def test_a_damaged_record_is_parsed_as_protobuf_parses_it_or_refused_whatever_its_batch(seed):
    random = Random(seed)
    intact = [written(random) for _ in range(4)]
    whole = [text(by_protobuf(MANY, payload)) for payload in intact]
    parser = ExampleParser(MANY)
    assert result(parser, intact) == whole
    for _ in range(10):
        payload = damaged(random, intact[0], intact[1])
        expected = by_protobuf(MANY, payload)
        alone = result(ExampleParser(MANY), [payload])
        if isinstance(expected, dict):
            assert alone in (None, [text(expected)])
        elif expected != "protobuf":  # which also refuses damage in features that are not asked for
            assert alone is None
        for each in (parser, ExampleParser(MANY)):
            assert result(each, [payload, *intact]) == (alone and [*alone, *whole])
            assert result(each, [*intact, payload]) == (alone and [*whole, *alone])


def test_a_byte_that_differs_among_records_alike_is_seen_wherever_it_is():
    random = Random(0)
    usual = {
        "i": [1],
        "pair": [1, 300],
        "ints": [2, 3],
        "f": [0.5],
        "floats": [1.0, 2.0],
        "b": [b"abc"],
        "o": [5],
    }
    alike = [
        odd_example(random, MANY, {**usual, "i": [number], "f": [number / 7]}, odd=0)
        for number in range(3)
    ]
    whole = result(ExampleParser(MANY), alike)
    assert whole == [text(by_protobuf(MANY, payload)) for payload in alike]
    for place in range(len(alike[0])):
        for bit in (1, 2, 8, 128):
            payload = bytearray(alike[1])
            payload[place] ^= bit
            alone = result(ExampleParser(MANY), [bytes(payload)])
            batch = result(ExampleParser(MANY), [alike[0], bytes(payload), alike[2]])
            assert batch == (alone and [whole[0], *alone, whole[2]])


ONE = {"a": Feature("int64", (None,), optional=True)}
FIVE = b"\x08\x05"
VALUE = field(2, feature("int64", FIVE))
GROUP = b"\x3b\x3c"  # field 7; protobuf has deprecated them


def integers(content: bytes) -> bytes:
    """An entry "a" with a list of this content."""
    return entry("a", feature("int64", content))


INTEGER = example(integers(FIVE))
REFUSED_HERE = {  # by protobuf: parsed, or parsed differently by its implementations
    "a group beside features": (INTEGER + GROUP, "wire type 3"),
    "a group in a feature": (example(entry("a", GROUP + feature("int64", FIVE))), "wire type 3"),
    "an unknown field in a list": (example(integers(b"\x10\x05" + FIVE)), "tag 16 in a list"),
    "floats in a list of integers": (example(integers(b"\x0d????" + FIVE)), "tag 13 in a list"),
    "two lists in a feature": (
        example(entry("a", feature("int64", FIVE) * 2)),
        "two lists in a feature",
    ),
    "two values in an entry": (example(integers(FIVE) + VALUE), "a field twice, or an unknown one"),
    "an unknown field in an entry": (
        example(integers(FIVE) + b"\x38\x05"),
        "a field twice, or an unknown one",
    ),
}
REFUSED_BY_BOTH = {
    "the number of a field is 0": example(entry("a", b"\x02\0" + feature("int64", FIVE))),
    "a tag of over 32 bits": example(entry("a", b"\x9a\x80\x80\x80\x10\x02" + FIVE)),
    "a tag of ten bytes": example(entry("a", b"\x9a" + b"\x80" * 8 + b"\0\x02" + FIVE)),
    "an integer of eleven bytes": example(integers(field(1, b"\xff" * 10 + b"\1"))),
    "an integer that is cut short": example(integers(field(1, b"\x80"))),
    "a length beyond the record": INTEGER[:-1],
}
ACCEPTED_HERE = {  # damage in features that are not asked for
    "a list that is cut short": entry("b", b"\x1a\x09"),
    "a key that is not text": field(1, b"\xff") + VALUE,
}


@pytest.mark.parametrize("name", REFUSED_HERE)
def test_encodings_that_nobody_writes_are_refused(name):
    payload, reason = REFUSED_HERE[name]
    assert isinstance(by_protobuf(ONE, payload), dict)
    with pytest.raises(
        SchemaError, match=rf"^{len(payload)} bytes that are not a tf\.train\.Example: {reason}"
    ):
        ExampleParser(ONE)([payload])


@pytest.mark.parametrize("name", REFUSED_BY_BOTH)
def test_bytes_that_protobuf_refuses_are_refused(name):
    payload = REFUSED_BY_BOTH[name]
    assert by_protobuf(ONE, payload) == "protobuf"
    with pytest.raises(SchemaError, match=f"{len(payload)} bytes that are not a tf.train.Example"):
        ExampleParser(ONE)([payload])


@pytest.mark.parametrize("name", ACCEPTED_HERE)
def test_damage_in_a_feature_that_is_not_asked_for_is_not_seen(name):
    payload = example(integers(FIVE), ACCEPTED_HERE[name])
    assert by_protobuf(ONE, payload) == "protobuf"
    assert parsed(ExampleParser(ONE), ONE, [payload]) == [{"a": [5]}]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, r"'x' is missing; the schema has it in every record\."),
        ({"x": None}, r"'x' is missing; the schema has it in every record\."),
        ({"x": [1, 2, 3]}, r"'x' has 3 values; its shape \(2,\) holds 2\."),
        ({"x": []}, r"'x' has 0 values; its shape \(2,\) holds 2\."),
    ],
)
@pytest.mark.parametrize("good", [0, 3])
def test_a_record_that_does_not_fit_its_schema_is_refused_with_the_reason(values, text, good):
    features = {"x": Feature("int64", (2,))}
    intact = odd_example(Random(0), features, {"x": [1, 2]}, 0)
    with pytest.raises(SchemaError, match=text):
        ExampleParser(features)([intact] * good + [odd_example(Random(0), features, values, 0)])
    other = odd_example(Random(0), {"x": Feature("float32")}, {"x": [0.5, 1.0]}, 0)
    with pytest.raises(SchemaError, match=r"'x' is a list of float32; its dtype is int64\."):
        ExampleParser(features)([intact] * good + [other])


def test_lengths_are_read_on_both_sides_of_every_number_of_bytes():
    """Of keys, values, lists and entries, whose lengths take another byte at different sizes of the value."""
    sizes = [*range(6), *range(100, 132), *range(16_370, 16_390)]
    for key, dtype in itertools.product(("k", "k" * 119, *LONG), ("bytes", "float32", "int64")):
        features = {key: Feature(dtype, () if dtype == "bytes" else (None,)), "n": Feature("int64")}
        parser, payloads, expected = ExampleParser(features), [], []
        for size in [*sizes, 2**21 - 1, 2**21] if dtype == "bytes" else sizes:
            values = (
                [bytes(size)]
                if dtype == "bytes"
                else [1.0] * (size // 4)
                if dtype == "float32"
                else [7] * size
            )
            payloads.append(odd_example(Random(0), features, {"n": [size], key: values}, 0))
            expected.append({key: values, "n": [size]})
        assert parsed(parser, features, payloads) == expected
        assert [parsed(parser, features, [payload])[0] for payload in payloads] == expected


def test_threads_may_share_a_parser_whatever_the_orders_of_their_records_are():
    features = {key: Feature("int64") for key in "abc"}
    parser, failures = ExampleParser(features), []

    def parse(order: str) -> None:
        payloads = [
            odd_example(Random(0), features, {key: [i + ord(key)] for key in order}, 0)
            for i in range(4)
        ]
        expected = [{key: [i + ord(key)] for key in "abc"} for i in range(4)]
        failures.extend(1 for _ in range(200) if parsed(parser, features, payloads) != expected)

    threads = [
        threading.Thread(target=parse, args=["".join(order)])
        for order in itertools.permutations("abc")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.slow
@pytest.mark.parametrize(("keys", "longest"), [(40_000, 6), (3, 2_000_000)])
def test_a_record_of_many_or_long_keys_does_not_cost_its_batch_memory(keys, longest):
    entries = [field(1, b"%0*d" % (longest, i)) + VALUE for i in range(keys)]
    strange = field(1, b"".join(field(1, each) for each in [field(1, b"a") + VALUE, *entries]))
    usual = field(1, field(1, field(1, b"a") + VALUE))
    tracemalloc.start()
    try:
        found = ExampleParser({"a": Feature("int64")})([strange] + [usual] * 63)["a"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(set(np.asarray(found).tolist())) == 1
    assert peak < 24 * len(strange)  # 21 on Python 3.14
