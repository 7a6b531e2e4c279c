"""Plain numbers of texts, many at a time: those that Python finds in them, bit by bit."""

import re

import numpy as np
import pyarrow as pa
import pytest

from pipeline.raw.text_cells import EMPTY, FLOAT, INTEGER, OTHER, plain_numbers

INTEGERS = re.compile(r"-?(0|[1-9]\d{0,17})", re.ASCII)
FLOATS = re.compile(r"-?(\d+|(?=\.\d))(\.\d*)?([eE][+-]?\d+)?", re.ASCII)
MALFORMED = ["-.", ".", "e+05", "1.2.3", "-1-2", "1.5-2", "1e", "--1.5"]


def assert_plain(texts):
    """Checks the numbers of texts. Returns their kinds."""
    kinds, floats = plain_numbers(pa.array(texts, pa.string()), ".")
    for text, kind in zip(texts, kinds.tolist(), strict=True):
        assert (kind == EMPTY) == (text == "")
        assert (kind == INTEGER) == bool(text and INTEGERS.fullmatch(text)), text
        assert kind != FLOAT or (FLOATS.fullmatch(text) and re.search("[.eE]", text)), text
    known = (kinds == INTEGER) | (kinds == FLOAT)
    expected = np.array([float(texts[i]) for i in np.flatnonzero(known).tolist()])
    assert (floats[known].view(np.uint64) == expected.view(np.uint64)).all()
    assert np.isnan(floats[~known]).all()
    return kinds


def test_numbers_of_texts_are_those_of_python():
    r = np.random.default_rng(0)
    values = r.normal(size=3000) * 10.0 ** r.integers(-9, 9, 3000)
    texts = [
        *map(repr, values.tolist()),
        *(f"{value:.{i % 12}f}" for i, value in enumerate(values)),
        *(f"{value:.{i % 20}e}" for i, value in enumerate(values.tolist())),
        *(str(int(value * 10**9)) for value in values),
        *("", "-", "-.5", ".5", "1.", "0", "-0", "-0.0", "007", "00.5", "1" * 18, "1" * 19),
        *("9" * 18, "1" * 24 + ".5", "1e-05", "1e05", "1e+99", "1e400", "+1.5", "1:2", "inf"),
        *("nan", "2026-11-29", "1_000", "0x10", " 1", "\u0967", "\uff11", "5e-324", None),
    ]
    kinds = assert_plain(texts)
    assert np.bincount(kinds, minlength=4)[[INTEGER, FLOAT]].min() > 2500
    for i in range(200):
        assert_plain(texts[i::200])  # other neighbours
    assert_plain(texts[:7])
    assert_plain([])


@pytest.mark.parametrize("text", MALFORMED)
def test_a_text_that_only_looks_like_a_number_makes_the_others_unknown(text):
    kinds, floats = plain_numbers(pa.array(["1", text, "", "2.5"]), ".")
    assert kinds.tolist() == [OTHER, OTHER, EMPTY, OTHER]
    assert np.isnan(floats).all()


def test_a_decimal_comma_is_read_in_place_of_the_point():
    kinds, floats = plain_numbers(pa.array(["1,5", "1.5", "7", "-2e3"]).slice(0, 4), ",")
    assert kinds.tolist() == [FLOAT, OTHER, INTEGER, FLOAT]
    assert floats.tolist()[0::2] == [1.5, 7.0]


def test_a_slice_of_texts_has_its_own_numbers():
    kinds, floats = plain_numbers(pa.array(["x", "1", "2.5", "y"]).slice(1, 2), ".")
    assert (kinds.tolist(), floats.tolist()) == ([INTEGER, FLOAT], [1.0, 2.5])
