"""Arrays in memory as records: their bytes, their errors, and that a later change of one is found."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.datasets import eval_dataset, open_dataset, train_dataset
from pipeline.errors import CorruptRecordError, EmptySplitError, OptionError, SchemaError
from pipeline.shards.example import encode_example
from pipeline.shards.frames import crc32c
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.sources.in_memory import ArrayRecords, ExampleRecords
from pipeline.sources.records import Group, Records, fetch, intact

IMAGES = np.arange(5 * 2 * 3, dtype=np.uint8).reshape(5, 2, 3)
LABELS = np.arange(5, dtype=">i8")


def payloads(arrays, ids):
    return [intact(record)[0] for record in fetch(ArrayRecords(arrays), np.array(ids, np.int64))]


def test_a_payload_is_the_bytes_of_its_row_in_the_order_of_the_names():
    records = ArrayRecords({"label": LABELS, "image": IMAGES})
    assert records.info.layout == np.dtype([("image", "u1", (2, 3)), ("label", ">i8")])
    assert (records.info.num_records, records.info.num_bytes, records.info.name) == (
        5,
        5 * 14,
        "arrays (image, label)",
    )
    assert records.where(3) == "arrays (image, label), row 3"
    ids = np.array([4, 0, 4])
    found = fetch(records, ids)
    assert [record[0] for record in found] == [
        IMAGES[i].tobytes() + bytes([0] * 7 + [i]) for i in (4, 0, 4)
    ]
    assert (
        [record[1] for record in found]
        == [crc32c(record[0]) for record in found]
        == list(records.info.crcs[ids])
    )
    assert list(records.read([Group(np.array([], np.int64), 0)])) == [[]]


@given(
    st.sampled_from(["?", "u1", "<i2", ">f4", "f8", "S3", "V2"]),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.sampled_from(["as it is", "reversed", "every second", "transposed", "read-only"]),
)
def test_any_memory_layout_gives_the_bytes_of_the_rows(kind, shape, how):
    array = np.random.default_rng(0).bytes(np.dtype(kind).itemsize * 6 * int(np.prod(shape)))
    array = np.frombuffer(array, kind).reshape(6, *shape)
    array = {
        "as it is": array.copy(),
        "reversed": array[::-1],
        "every second": array[::2],
        "transposed": np.asfortranarray(array),
        "read-only": array,
    }[how]
    ids = [2, 0, 1, 2]
    assert payloads({"x": array, "y": np.arange(len(array))}, ids) == [
        array[i].tobytes() + np.arange(len(array))[i].tobytes() for i in ids
    ]


def test_a_changed_row_is_found_when_it_is_delivered_and_no_other_is(tmp_path):
    images = IMAGES.copy()
    records = ArrayRecords({"image": images, "label": LABELS})
    images[3, 1, 1] ^= 1
    before, error, after = fetch(records, np.array([2, 3, 4]))
    assert (before[0][:6], after[0][:6]) == (IMAGES[2].tobytes(), IMAGES[4].tobytes())
    assert isinstance(error, CorruptRecordError)
    text = r"arrays \(image, label\), row 3: crc32c is \w{8} and was \w{8} when .*They have been written to since"
    with pytest.raises(CorruptRecordError, match=text):
        list(eval_dataset(records, global_batch=2).batches())
    images[3, 1, 1] ^= 1
    assert len(list(eval_dataset(records, global_batch=2).batches())) == 3


def test_the_fingerprint_is_of_names_dtypes_shapes_and_contents():
    same = [{"a": IMAGES, "b": LABELS}, {"b": LABELS.copy(), "a": np.asfortranarray(IMAGES)}]
    assert len({ArrayRecords(arrays).info.fingerprint for arrays in same}) == 1
    changed = IMAGES.copy()
    changed[4, 1, 2] += 1
    others = [
        {"a": IMAGES, "c": LABELS},
        {"a": IMAGES, "b": LABELS.astype("<i8")},
        {"a": IMAGES.reshape(5, 3, 2), "b": LABELS},
        {"a": IMAGES.view(np.int8), "b": LABELS},
        {"a": changed, "b": LABELS},
        {"a": IMAGES[::-1], "b": LABELS},
        {"a": IMAGES[:4], "b": LABELS[:4]},
    ]
    assert len({ArrayRecords(arrays).info.fingerprint for arrays in [same[0], *others]}) == 1 + len(
        others
    )


def test_both_recipes_take_arrays_and_parts_of_them():
    arrays = {"image": IMAGES, "label": LABELS}
    source = eval_dataset(arrays, global_batch=2)
    batches = list(source.batches())
    assert np.concatenate([b["image"] for b in batches])[:5].tobytes() == IMAGES.tobytes()
    assert np.concatenate([b["label"] for b in batches]).tolist() == [0, 1, 2, 3, 4, 0]
    assert (
        source.info.expected_crc
        == sum(int(b["_crc"].sum(dtype=np.uint64)) for b in batches) % 2**32
    )
    half = next(train_dataset(arrays, "[:40%]", global_batch=2, seed=1).batches())
    assert sorted(half["label"].tolist()) == [0, 1]
    both = open_dataset([arrays, {"image": IMAGES[:1], "label": LABELS[:1]}])
    assert both.info.num_records == 6
    with pytest.raises(
        OptionError, match=r"split='train': arrays \(image, label\) has no splits, .* '\[:90%\]'"
    ):
        open_dataset(arrays, "train")


def test_a_memory_mapped_file_serves_as_an_array(tmp_path):
    np.save(tmp_path / "images.npy", IMAGES)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    assert payloads({"image": mapped}, [4]) == [IMAGES[4].tobytes()]


@pytest.mark.parametrize(
    ("arrays", "error", "text"),
    [
        ({}, OptionError, r"there are no arrays\. Give at least one, such as \{'image'"),
        ({"a": IMAGES, "b": LABELS[:4]}, OptionError, r"different numbers of rows: 'a' 5, 'b' 4\. Row i of each"),
        ({"a": IMAGES[:0], "b": LABELS[:0]}, EmptySplitError, r"arrays \(a, b\) have no rows"),
        ({"a": np.float32(3)}, OptionError, "'a' is a single value, float32"),
        ({1: IMAGES}, OptionError, "an array has the name 1; names must be non-empty strings"),
        ({"a": IMAGES, "_a": IMAGES}, OptionError, "an array has the name '_a'; .* without _ at"),
        ({"": IMAGES}, OptionError, "an array has the name ''"),
        ({"t": ["a", "bc"]}, SchemaError, r"'t' is an array of <U2, .* np\.char\.encode\(t, 'utf-8'\)"),
        ({"o": np.array([b"a", b"bc"], object)}, SchemaError, "'o' is an array of object, .* Pad rows"),
        ({"z": np.zeros(2, "c8")}, SchemaError, "field 'z' is complex64"),
        ({"e": np.zeros((2, 0))}, SchemaError, "field 'e' is .*, which has no bytes"),
        ({"r": [[1], [1, 2]]}, SchemaError, "'r' is not an array: .* Pad rows of different lengths"),
        (None, OptionError, r"NoneType is not a dataset\. Give a directory, a file or a pattern; a dict of arrays"),
        ([["dir"]], OptionError, r"list is not a dataset\. .*; or a list of these"),
    ],
)  # fmt: skip
def test_arrays_that_cannot_be_records_are_refused_with_the_remedy(arrays, error, text):
    with pytest.raises(error, match=text):
        open_dataset(arrays)


SCHEMA = Schema("words", {"word": Feature("bytes"), "label": Feature("int64")})
NAMED = Labels("label", 0, ("a", "b"))
WORDS = [{"word": b"x" * number, "label": number % 2} for number in range(5)]


def test_example_records_have_the_payloads_that_a_conversion_would_write():
    records = ExampleRecords("words", SCHEMA, WORDS, NAMED)
    assert isinstance(records, Records)
    payloads = [encode_example(SCHEMA, word) for word in WORDS]
    opened = open_dataset(records)
    assert list(opened) == payloads
    assert opened.take([4, 0, 4]) == [payloads[4], payloads[0], payloads[4]]
    assert records.info.crcs.tolist() == [crc32c(payload) for payload in payloads]
    assert records.info.num_bytes == records.info.lengths.sum() == sum(map(len, payloads))
    assert (opened.labels, opened.layout) == (NAMED, SCHEMA)
    assert list(open_dataset(records, "[1:3]")) == payloads[1:3]


def test_other_examples_have_another_fingerprint():
    prints = {
        ExampleRecords(name, SCHEMA, words).info.fingerprint
        for name, words in (("a", WORDS), ("b", WORDS[:4]))
    }
    assert len(prints | {ExampleRecords("c", SCHEMA, WORDS).info.fingerprint}) == 2


def test_no_examples_and_unfitting_examples_are_refused():
    with pytest.raises(EmptySplitError, match="words has no records, so there is nothing to read."):
        ExampleRecords("words", SCHEMA, [])
    with pytest.raises(SchemaError, match="'label' is missing"):
        ExampleRecords("words", SCHEMA, [{"word": b""}])
    assert ExampleRecords("words", SCHEMA, WORDS).weigh(np.array([0, 1])) > 500
