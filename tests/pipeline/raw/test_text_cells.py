"""Plain numbers of texts, many at a time: the integers and the float32 that Python finds in them."""

import re

import numpy as np
import pytest
from sweep import SWEEP

from pipeline.raw.text_cells import EMPTY, FLOAT, INTEGER, OTHER, PAD, TextCells, parse_numbers

INTEGERS = re.compile(r"-?(0|[1-9]\d{0,17})", re.ASCII)
FLOATS = re.compile(r"-?\d+((\.\d*)?([eE][+-]\d\d)|\.\d*)", re.ASCII)


def cells_of(texts):
    encoded = [text.encode() for text in texts]
    end = np.cumsum([PAD, *map(len, encoded)], dtype=np.int32)
    data = np.frombuffer(bytes(PAD) + b"".join(encoded) + bytes(PAD), np.uint8)
    return TextCells(data, end[:-1], end[1:])


def assert_parsed(texts):
    """Checks the numbers of texts. Returns their kinds."""
    kinds, integers, floats = parse_numbers(cells_of(texts))
    for text, kind, integer in zip(texts, kinds.tolist(), integers.tolist(), strict=True):
        assert (kind == INTEGER) == bool(INTEGERS.fullmatch(text)), text
        assert (kind == EMPTY) == (not text)
        assert kind != FLOAT or FLOATS.fullmatch(text), text
        assert kind != INTEGER or integer == int(text)
    numbers = np.flatnonzero((kinds == INTEGER) | (kinds == FLOAT))
    expected = np.array([float(texts[i]) for i in numbers.tolist()])
    with np.errstate(over="ignore"):
        singles = floats[numbers].astype(np.float32).view(np.uint32)
        assert (singles == expected.astype(np.float32).view(np.uint32)).all()
    return kinds


def test_numbers_of_texts_are_those_of_python():
    r = np.random.default_rng(0)
    values = r.normal(size=3000) * 10.0 ** r.integers(-9, 9, 3000)
    texts = [
        *map(repr, values.tolist()),
        *(f"{value:.{i % 12}f}" for i, value in enumerate(values)),
    ]
    texts += [f"{value:.{i % 20}e}" for i, value in enumerate(values.tolist())]
    texts += [str(int(value * 10**9)) for value in values]
    texts += [
        "",
        "-",
        ".",
        "-.5",
        ".5",
        "1.",
        "0",
        "-0",
        "-0.0",
        "007",
        "00.5",
        "1" * 18,
        "1" * 19,
        "9" * 18,
    ]
    texts += [
        "1" * 24 + ".5",
        "0." + "0" * 21 + "1",
        "1e-05",
        "1e05",
        "1e+99",
        "e+05",
        "1.2.3",
        "1:2",
        "1/2",
        "१",
        "１",
    ]
    kinds = assert_parsed(texts)
    assert np.bincount(kinds, minlength=4)[[INTEGER, FLOAT]].min() > 2500
    for i in range(0, 200):
        assert_parsed(texts[i::200])  # other neighbours


@pytest.mark.parametrize("seed", range(40 if SWEEP else 2))
def test_floats_near_the_middle_of_two_float32_round_as_those_of_python(seed):
    r = np.random.default_rng(seed)
    values = np.abs(r.normal(size=20_000) * 10.0 ** r.integers(-3, 6, 20_000)).astype(np.float32)
    steps = (1 << 28) + r.integers(-12, 13, len(values))
    near = (values.astype(np.float64).view(np.int64) + steps).view(np.float64).tolist()
    texts = [
        np.format_float_positional(x, precision=17, unique=False, fractional=False, trim="-")
        for x in near
    ]
    kinds = assert_parsed(texts)
    assert OTHER in kinds
    assert (kinds == FLOAT).mean() > 0.2
