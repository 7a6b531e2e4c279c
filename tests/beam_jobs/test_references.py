"""Columnar batches of references."""

import dataclasses
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.references import File, Reference, References, concat
from pipeline.storage.storage import Stat

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12) | st.just(
    "odd \udcff byte"
)
ROWS = st.lists(
    st.builds(
        Reference,
        key=NAMES,
        file=st.sampled_from([File("a.tar", Stat(10)), File("b.tar", Stat(20)), File("a.tar", Stat(10, 3))]),
        offset=st.integers(0, 2**62),
        size=st.integers(0, 2**40),
        error=st.sampled_from(["", "bad"]),
        columns=st.fixed_dictionaries(
            {"label": st.integers(0, 1000), "synset": st.sampled_from([b"", b"n01", b"n0123"])}
        ),
    ),
    max_size=12,
)


@given(ROWS)
def test_a_batch_returns_its_rows_after_pickling(rows):
    assert list(pickle.loads(pickle.dumps(References.of(rows)))) == rows


@given(ROWS, st.integers(0, 12))
def test_concatenated_pieces_have_the_rows_of_the_original(rows, cut):
    whole = concat([References.of(rows[:cut]), References.of([]), References.of(rows[cut:])])
    assert list(whole) == rows


@given(ROWS, st.randoms(use_true_random=False))
def test_taking_rows_keeps_only_the_files_they_need(rows, random):
    numbers = [i for i in range(len(rows)) if random.random() < 0.5]
    taken = References.of(rows).take(np.array(numbers, int))
    assert list(taken) == [rows[i] for i in numbers]
    assert set(taken.files) == {rows[i].file for i in numbers}


def test_values_depend_on_everything_but_file_and_offset():
    row = Reference("k", File("a", Stat(1)), 5, 7, "", {"label": 3})

    def values(**changes):
        return list(References.of([dataclasses.replace(row, **changes)]).values())

    assert values() == values(file=File("b", Stat(2))) == values(offset=6)
    others = [values(), values(key="j"), values(size=8), values(error="x"), values(columns={"label": 4})]
    assert all(a != b for i, a in enumerate(others) for b in others[:i])


@pytest.mark.parametrize("letter", ["x", "ä", "\udcff"])
def test_a_row_with_a_huge_name_is_rejected_under_a_short_one_and_makes_no_other_row_wide(letter):
    rows = [Reference(name, File("a", Stat(1)), 0, 1, "", {}) for name in ("k", letter * 99_999, letter * 99_998)]
    refs = References.of([*rows, dataclasses.replace(rows[0], error=f"no label {letter * 99_999}")])
    assert max(refs.key.itemsize, refs.error.itemsize) < 1100
    good, first, second, told = refs
    assert good == rows[0]
    assert first.key != second.key
    size = 99_999 * (2 if letter == "ä" else 1)
    assert first.error == f"a name of {size:,} bytes; allowed are up to 4,096"
    assert told.error == f"no label {letter * 247}..."


def test_the_longest_name_that_storages_allow_is_kept():
    row = Reference("ä" * 2048, File("a", Stat(1)), 0, 1, "", {})
    assert list(References.of([row])) == [row]


def test_going_through_the_rows_of_a_large_shard_takes_little_memory_besides_them():
    rows = 50_000
    numbers = np.arange(rows)
    keys = np.char.mod("train-00000-of-00001:%d", numbers).astype("S")
    refs = References(
        (File("a", Stat(1)),),
        keys,
        np.zeros(rows, np.int32),
        numbers,
        numbers,
        np.zeros(rows, "S1"),
        {"label": numbers},
    )
    tracemalloc.start()
    try:
        assert sum(ref.columns["label"] for ref in refs) == numbers.sum()
        assert tracemalloc.get_traced_memory()[1] < 1_000_000  # lists of all cells: 10 MB
    finally:
        tracemalloc.stop()
