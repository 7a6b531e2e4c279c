"""Windows are those of a reference, and depend on nothing but seed and size."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples

from pipeline.decoding.photo_ops import TRIES, central_square, random_window, resized_short
from pipeline.decoding.rng import rngs_of
from pipeline.tf_cpu import tf

AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def windows(size, seeds, area=AREA, ratio=RATIO):
    return np.array([random_window(*size, rng.bits(4 * TRIES), area, ratio) for rng in rngs_of(seeds)])


def philox(counter, key):
    """Four numbers of 32 bits: Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011."""
    (a, b, c, d), (left, right) = (counter, 0, 0, 0), key
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = second >> 32 ^ b ^ left, second % 2**32, first >> 32 ^ d ^ right, first % 2**32
        left, right = (left + 0x9E3779B9) % 2**32, (right + 0xBB67AE85) % 2**32
    return a, b, c, d


@settings(max_examples=examples(50))
@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(0, 2**32 - 1))
def test_every_window_is_inside_of_its_image(height, width, seed):
    seeds = np.random.default_rng(seed).integers(-(2**31), 2**31, (8, 2)).astype(np.int32)
    y, x, h, w = windows((height, width), seeds).T
    assert min(y.min(), x.min()) >= 0
    assert min(h.min(), w.min()) >= 1
    assert (y + h).max() <= height
    assert (x + w).max() <= width


def by_hand(height, width, seed, area, ratio):
    """The same window in Python's own arithmetic."""
    numbers = [bits / 2**32 for i in range(TRIES) for bits in philox(i, [int(s) % 2**32 for s in seed])]
    low, high = map(math.log, ratio)
    for i in range(TRIES):
        of_area, of_ratio, y, x = numbers[i::TRIES]
        root = math.sqrt(height * width * (area[0] + of_area * (area[1] - area[0])))
        step = (int(of_ratio * 4096) + 0.5) / 4096
        side = round(math.exp((low + step * (high - low)) / 2) * 2**24) / 2**24
        h, w = round(root / side), round(root * side)
        if 1 <= h <= height and 1 <= w <= width:
            return [math.floor(y * (height - h + 1)), math.floor(x * (width - w + 1)), h, w]
    w, h = max(1, min(width, round(height * ratio[1]))), max(1, min(height, round(width / ratio[0])))
    return [(height - h) // 2, (width - w) // 2, h, w]


@pytest.mark.parametrize(("area", "ratio"), [(AREA, RATIO), ((0.3, 0.3), (0.1, 9.0)), ((0.9, 1.0), (2.0, 2.5))])
@settings(max_examples=examples(50))
@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(0, 2**32 - 1))
def test_crop_windows_equal_a_reference_computed_in_python_with_philox(area, ratio, height, width, seed):
    """Other windows would be another training for everyone who resumes from a checkpoint."""
    seeds = np.random.default_rng(seed).integers(-(2**31), 2**31, (4, 2)).astype(np.int32)
    ours = windows((height, width), seeds, area, ratio).tolist()
    assert ours == [by_hand(height, width, each, area, ratio) for each in seeds]


@settings(max_examples=examples(50))
@given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([128, 160, 192, 224, 299, 331, 600]))
def test_the_central_square_is_that_of_the_published_code(height, width, crop):
    """tensorflow/tpu, resnet_preprocessing.py: _decode_and_center_crop, with its float32."""
    padded = ((crop / (crop + 32)) * tf.cast(min(height, width), tf.float32)).numpy()
    side = max(1, int(padded))
    expected = ((height - side) + 1) // 2, ((width - side) + 1) // 2, side, side
    assert central_square(height, width, crop, 32) == expected


@settings(max_examples=examples(50))
@given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([64, 182, 256, 257, 384]))
def test_the_shorter_side_is_resized_as_the_published_code_does_it(height, width, shorter):
    """big_vision, pp/ops_image.py: resize_small, with its float32. Never below: the central crop has to fit."""
    ratio = np.float32(shorter) / np.float32(min(height, width))
    expected = tuple(int(np.round(np.float32(side) * ratio)) for side in (height, width))
    found = resized_short(height, width, shorter)
    assert found == expected
    assert min(found) == shorter
