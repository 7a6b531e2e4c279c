"""The random numbers of ops: those of TensorFlow's Philox, uniform, and each record's own."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_rng import rng_of
from scipy.stats import chisquare
from sweep import examples

from pipeline.decoding.photo_ops import TRIES, central_square, random_window, resized_short
from pipeline.decoding.rng import rngs_of
from pipeline.tf_cpu import tf

COUNT, ALPHA = 100_000, 1e-3  # fixed seeds: what passes once passes always
int32 = st.integers(-(2**31), 2**31 - 1)
keys = st.tuples(int32, int32)
counts = st.integers(0, 200)


def of_tensorflow(key, count):
    """uint32 [count]: the bits that ops drew when they were graphs."""
    bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[count],
        key=tf.bitcast(tf.constant(key, tf.int32), tf.uint64)[None],
        counter=tf.zeros(2, tf.uint64),
        alg=1,
        dtype=tf.uint32,
    )
    return bits.numpy()


@settings(max_examples=examples(100))
@given(keys, counts)
def test_bits_are_those_of_tensorflows_philox(key, count):
    bits = rng_of(key).bits(count)
    assert bits.dtype == np.uint32
    np.testing.assert_array_equal(bits, of_tensorflow(key, count))


@settings(max_examples=examples(100))
@given(keys, st.lists(counts, max_size=5))
def test_a_stream_continues_between_calls(key, parts):
    rng = rng_of(key)
    drawn = [rng.bits(count) for count in parts]
    np.testing.assert_array_equal(
        np.concatenate([np.empty(0, np.uint32), *drawn]), rng_of(key).bits(sum(parts))
    )


def draw(rng):
    """A little of everything."""
    values = [
        rng.uniform(),
        rng.integers(3, 50),
        *rng.uniform(-1, 1, 5),
        *rng.integers(0, 9, 4),
        *rng.bits(70),
    ]
    return [*map(float, values), *rng.key]


@settings(max_examples=examples(50))
@given(st.lists(keys, min_size=1, max_size=9), st.randoms(use_true_random=False))
def test_the_numbers_of_a_record_do_not_depend_on_its_batch_nor_on_the_order_of_drawing(
    batch, shuffle
):
    alone = [draw(rng_of(key)) for key in batch]
    places = list(range(len(batch)))
    shuffle.shuffle(places)
    rngs = rngs_of(np.array(batch, np.int32))
    together = {place: draw(rngs[place]) for place in places}
    assert [together[place] for place in range(len(batch))] == alone


def test_the_key_is_the_seed_and_drawing_does_not_change_it():
    rng = rng_of((-5, 2**31 - 1))
    rng.bits(9)
    assert rng.key == (-5, 2**31 - 1)
    assert [type(each) for each in rng.key] == [int, int]


@settings(max_examples=examples(100))
@given(keys, st.integers(-(2**40), 2**40), st.integers(1, 2**32), st.none() | st.integers(0, 9))
def test_integers_are_in_their_range(key, low, width, size):
    found = rng_of(key).integers(low, low + width, size)
    if size is None:
        assert type(found) is int
    else:
        assert found.dtype == np.int64
        assert found.shape == (size,)
    assert np.all((low <= np.asarray(found)) & (np.asarray(found) < low + width))


def test_uniform_numbers_have_53_random_bits():
    unit = rng_of().uniform(0, 1, COUNT)
    scaled = unit * 2.0**53
    np.testing.assert_array_equal(scaled, np.floor(scaled))
    places = np.arange(53, dtype=np.uint64)
    set_bits = ((scaled.astype(np.uint64)[:, None] >> places) & np.uint64(1)).sum(0)
    assert abs(set_bits / COUNT - 0.5).max() < 0.01  # six standard deviations
    words = rng_of().bits(2 * COUNT).astype(np.uint64)
    high, low = words[::2] >> np.uint64(5), words[1::2] >> np.uint64(6)
    np.testing.assert_array_equal(scaled.astype(np.uint64), (high << np.uint64(26)) | low)


@pytest.mark.parametrize(("low", "high"), [(0, 2), (-3, 4), (5, 105)])
def test_integers_are_equally_frequent(low, high):
    found = rng_of((11, high)).integers(low, high, COUNT)
    counts = np.bincount(found - low, minlength=high - low)
    assert len(counts) == high - low
    assert chisquare(counts).pvalue > ALPHA


AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def windows(size, seeds, area=AREA, ratio=RATIO):
    return np.array(
        [random_window(*size, rng.bits(4 * TRIES), area, ratio) for rng in rngs_of(seeds)]
    )


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
    numbers = [
        bits / 2**32 for i in range(TRIES) for bits in philox(i, [int(s) % 2**32 for s in seed])
    ]
    low, high = map(math.log, ratio)
    for i in range(TRIES):
        of_area, of_ratio, y, x = numbers[i::TRIES]
        root = math.sqrt(height * width * (area[0] + of_area * (area[1] - area[0])))
        step = (int(of_ratio * 4096) + 0.5) / 4096
        side = round(math.exp((low + step * (high - low)) / 2) * 2**24) / 2**24
        h, w = round(root / side), round(root * side)
        if 1 <= h <= height and 1 <= w <= width:
            return [math.floor(y * (height - h + 1)), math.floor(x * (width - w + 1)), h, w]
    w, h = (
        max(1, min(width, round(height * ratio[1]))),
        max(1, min(height, round(width / ratio[0]))),
    )
    return [(height - h) // 2, (width - w) // 2, h, w]


@pytest.mark.parametrize(
    ("area", "ratio"), [(AREA, RATIO), ((0.3, 0.3), (0.1, 9.0)), ((0.9, 1.0), (2.0, 2.5))]
)
@settings(max_examples=examples(50))
@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(0, 2**32 - 1))
def test_crop_windows_equal_a_reference_computed_in_python_with_philox(
    area, ratio, height, width, seed
):
    """Other windows would be another training for everyone who resumes from a checkpoint."""
    seeds = np.random.default_rng(seed).integers(-(2**31), 2**31, (4, 2)).astype(np.int32)
    ours = windows((height, width), seeds, area, ratio).tolist()
    assert ours == [by_hand(height, width, each, area, ratio) for each in seeds]


@settings(max_examples=examples(50))
@given(
    st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([128, 160, 192, 224, 299, 331, 600])
)
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
