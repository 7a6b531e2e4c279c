"""Windows are distributed as published, and depend on nothing but seed and size."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from pipeline.decoding.windows import TRIES, central_square, random_bits, random_window
from pipeline.tf_cpu import tf

COUNT = 4_000
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


@tf.function(autograph=False)
def windows(size, seeds):
    def one(seed):
        return random_window(size, random_bits(seed, 4 * TRIES), AREA, RATIO)

    return tf.map_fn(one, seeds, fn_output_signature=tf.int32)


def published(height, width, rng):
    """RandomResizedCrop of torchvision, as its documentation and paper state it: [y, x, height, width]."""
    for _ in range(10):
        target = height * width * rng.uniform(*AREA)
        ratio = math.exp(rng.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < w <= width and 0 < h <= height:
            return rng.integers(0, height - h + 1), rng.integers(0, width - w + 1), h, w
    w, h = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize("size", [(375, 500), (1000, 333)])
def test_windows_are_distributed_as_published(size):
    rng = np.random.default_rng(0)
    seeds = rng.integers(-(2**31), 2**31, (COUNT, 2)).astype(np.int32)
    ours = windows(tf.constant(size), seeds).numpy().T
    theirs = np.array([published(*size, rng) for _ in range(COUNT)]).T
    for of in (lambda y, x, h, w: h * w, lambda y, x, h, w: w / h, lambda y, x, h, w: y, lambda y, x, h, w: x):
        assert ks_2samp(of(*ours), of(*theirs)).pvalue > 1e-3


@settings(max_examples=50)
@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(0, 2**32 - 1))
def test_every_window_is_inside_of_its_image(height, width, seed):
    seeds = np.random.default_rng(seed).integers(-(2**31), 2**31, (8, 2)).astype(np.int32)
    y, x, h, w = windows(tf.constant([height, width]), seeds).numpy().T
    assert min(y.min(), x.min()) >= 0
    assert min(h.min(), w.min()) >= 1
    assert (y + h).max() <= height
    assert (x + w).max() <= width


def philox(counter, key):
    """Four numbers of 32 bits: Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011."""
    (a, b, c, d), (left, right) = (counter, 0, 0, 0), key
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = second >> 32 ^ b ^ left, second % 2**32, first >> 32 ^ d ^ right, first % 2**32
        left, right = (left + 0x9E3779B9) % 2**32, (right + 0xBB67AE85) % 2**32
    return a, b, c, d


def by_hand(height, width, seed):
    """The same window in Python's own arithmetic."""
    numbers = [bits / 2**32 for i in range(TRIES) for bits in philox(i, [int(s) % 2**32 for s in seed])]
    low, high = map(math.log, RATIO)
    for i in range(TRIES):
        of_area, of_ratio, y, x = numbers[i::TRIES]
        root = math.sqrt(height * width * (AREA[0] + of_area * (AREA[1] - AREA[0])))
        step = (int(of_ratio * 4096) + 0.5) / 4096
        side = round(math.exp((low + step * (high - low)) / 2) * 2**24) / 2**24
        h, w = round(root / side), round(root * side)
        if 1 <= h <= height and 1 <= w <= width:
            return [math.floor(y * (height - h + 1)), math.floor(x * (width - w + 1)), h, w]
    w, h = max(1, min(width, round(height * RATIO[1]))), max(1, min(height, round(width / RATIO[0])))
    return [(height - h) // 2, (width - w) // 2, h, w]


@settings(max_examples=50)
@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(0, 2**32 - 1))
def test_windows_are_those_of_pythons_own_arithmetic_and_of_philox(height, width, seed):
    """Other windows would be another training for everyone who resumes from a checkpoint."""
    seeds = np.random.default_rng(seed).integers(-(2**31), 2**31, (4, 2)).astype(np.int32)
    ours = windows(tf.constant([height, width]), seeds).numpy().tolist()
    assert ours == [by_hand(height, width, each) for each in seeds]


@settings(max_examples=50)
@given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([128, 160, 192, 224, 299, 331, 600]))
def test_the_central_square_is_that_of_the_published_code(height, width, crop):
    """tensorflow/tpu, resnet_preprocessing.py: _decode_and_center_crop, with its float32."""
    padded = ((crop / (crop + 32)) * tf.cast(tf.minimum(height, width), tf.float32)).numpy()
    side = max(1, int(padded))
    expected = [((height - side) + 1) // 2, ((width - side) + 1) // 2, side, side]
    assert central_square(tf.constant([height, width]), crop, 32).numpy().tolist() == expected
