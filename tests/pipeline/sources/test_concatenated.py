import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples

from pipeline.datasets import open_dataset, train_dataset
from pipeline.errors import CorruptRecordError, OptionError, SchemaError
from pipeline.shards.example_decoding import decode_example
from pipeline.shards.frames import FRAME_BYTES
from pipeline.shards.schema import Feature, Schema
from pipeline.sources.concatenated import Concatenated, Part, concatenated
from pipeline.sources.records import RECORD_OBJECT_BYTES, fetch, intact, weighed

SIZES = ((5, 0, 7), (1,), (20, 3))


def numbers(records) -> list[int]:
    return [decode_example(intact(record)[0])["number"][0] for record in records]


@st.composite
def parts(draw, numbers_of) -> tuple[list[Part], list[int]]:
    """Parts of datasets, the same one more than once, and the numbers in their records."""
    chosen, expected = [], []
    for sizes in draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=4)):
        first = draw(st.integers(0, sum(sizes) - 1))
        which = range(first, draw(st.integers(first + 1, sum(sizes))))
        chosen.append(Part(open_dataset(numbers_of(*sizes)), which))
        expected += which
    return chosen, expected


@given(data=st.data())
@settings(max_examples=examples(40))
def test_records_of_parts_come_in_any_groups_and_order_with_any_look_ahead(numbers_of, data):
    chosen, expected = data.draw(parts(numbers_of))
    records = concatenated(chosen)
    assert records.info.num_records == len(expected)
    ids = st.lists(st.integers(0, len(expected) - 1), max_size=9)
    groups = [np.array(group, np.int64) for group in data.draw(st.lists(ids, max_size=6))]
    reading = records.read(weighed(records, groups), data.draw(st.sampled_from([0, 100, 10**6])))
    assert [numbers(found) for found in reading] == [
        [expected[i] for i in group] for group in groups
    ]
    assert reading.held_bytes == 0
    everything = fetch(records, np.arange(len(expected)))
    crcs = [record[1] for record in everything]
    assert crcs == records.info.crcs[:].tolist()
    assert records.info.crcs[np.arange(0, len(crcs), 2)].tolist() == crcs[::2]
    assert records.info.crc_sum == sum(crcs) % 2**32
    assert [len(intact(record)[0]) for record in everything] == records.info.lengths[:].tolist()
    # A part's size is its share of the source: as good as records are alike, and rounded down.
    payloads = records.weigh(np.arange(len(expected))) - RECORD_OBJECT_BYTES * len(expected)
    on_disk = records.info.num_bytes - FRAME_BYTES * len(expected)
    assert abs(payloads - on_disk) <= 2 * len(expected) + len(chosen)


@given(data=st.data(), block=st.integers(1, 9))
@settings(max_examples=examples(30))
def test_no_block_crosses_the_boundary_of_a_part(numbers_of, data, block):
    chosen, _ = data.draw(parts(numbers_of))
    records = Concatenated(chosen)
    starts = records.block_starts(block)
    assert starts[0] == 0
    assert np.all(np.diff(starts) > 0)
    assert np.all(np.diff(np.append(starts, records.info.num_records)) <= block)
    assert set(records.info.source_starts[:-1].tolist()) <= set(starts.tolist())


def test_opening_one_complete_dataset_returns_it_and_a_part_has_another_fingerprint(numbers_of):
    directory = numbers_of(5, 0, 7)
    whole = open_dataset(directory)
    assert open_dataset([whole]) is whole
    prints = [
        whole.info.fingerprint,
        *(open_dataset(directory, f"train[:{n}]").info.fingerprint for n in (5, 6)),
    ]
    prints += [open_dataset([directory] * n).info.fingerprint for n in (2, 3)]
    assert len(set(prints)) == 5
    assert open_dataset(directory, "train[:12]") is not whole
    assert open_dataset(directory, "train[:12]").info.fingerprint == whole.info.fingerprint


def test_parts_of_splits_are_read_as_they_are_written(numbers_of):
    records = open_dataset([numbers_of(5, 0, 7), numbers_of(2)], "train[-2:]+validation[:50%]")
    assert numbers(fetch(records, np.arange(records.info.num_records))) == [
        10,
        11,
        *range(6),
        0,
        1,
        0,
    ]
    assert records.where(0).endswith("(record 10 of 'train')")
    assert records.where(3).endswith("(record 1 of 'validation')")
    assert records.info.name.count("[") == 3
    again = open_dataset(records, "[6:]")
    assert numbers(fetch(again, np.arange(3))) == [4, 5, 0]
    with pytest.raises(
        OptionError, match=r"split='train\[:5\]': .* has no splits, or was opened with one"
    ):
        open_dataset(records, "train[:5]")


def test_a_damaged_record_is_named_by_its_own_dataset(numbers_of, tmp_path, write_dataset):
    directory = write_dataset(tmp_path / "data", {"train": [[{"number": 1, "half": 0.5}]]}, NUMBERS)
    records = open_dataset([numbers_of(5, 0, 7), directory])
    shard = tmp_path / "data" / "train-00000-of-00001"
    shard.write_bytes(shard.read_bytes()[:-5] + b"x" + shard.read_bytes()[-4:])
    good, bad = fetch(records, np.array([0, 12]))
    assert numbers([good]) == [0]
    assert isinstance(bad, CorruptRecordError)
    assert f"{shard}, record 0 at byte 0" in str(bad)


NUMBERS = Schema("numbers", {"number": Feature("int64"), "half": Feature("float32")})


def test_concatenated_datasets_keep_the_features_they_have_in_common(
    numbers_of, tmp_path, write_dataset
):
    schema = Schema(
        "others", {"number": Feature("int64", optional=True), "half": Feature("float32", (2,))}
    )
    others = write_dataset(tmp_path / "others", {"train": [[{"half": [1, 2]}]]}, schema)
    records = open_dataset([numbers_of(1), others])
    assert records.info.layout == Schema("numbers", {"number": Feature("int64", optional=True)})
    batch = next(train_dataset(records, global_batch=2).batches())
    assert batch["number"].tolist() == [0, 0]
    strangers = write_dataset(
        tmp_path / "strangers", {"train": [[{"x": 1}]]}, Schema("x", {"x": Feature("int64")})
    )
    with pytest.raises(
        SchemaError,
        match=r"strangers, split 'train' have nothing in common: .*Concatenate datasets",
    ):
        open_dataset([numbers_of(1), strangers])


@pytest.mark.parametrize("turned", [False, True])
def test_examples_and_arrays_cannot_be_concatenated(numbers_of, turned):
    several = [numbers_of(2), {"number": np.arange(3)}]
    with pytest.raises(SchemaError, match="have nothing in common"):
        open_dataset(several[::-1] if turned else several)
