"""Windows are distributed as published, and depend on nothing but seed and size."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, chi2_contingency, ks_2samp
from sweep import SWEEP, examples

from pipeline.decoding.photo_ops import TRIES, central_square, random_window, resized_short
from pipeline.decoding.rng import rngs_of
from pipeline.tf_cpu import tf

COUNT, ALPHA = 100_000, 1e-3  # fixed seeds: what passes once passes always
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def windows(size, seeds):
    return windows_of(size, [rng.bits(4 * TRIES) for rng in rngs_of(seeds)])


def windows_of(size, bits):
    return np.array([random_window(*size, each, AREA, RATIO) for each in bits])


def philox(counter, key):
    """Four numbers of 32 bits: Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011."""
    (a, b, c, d), (left, right) = (counter, 0, 0, 0), key
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = second >> 32 ^ b ^ left, second % 2**32, first >> 32 ^ d ^ right, first % 2**32
        left, right = (left + 0x9E3779B9) % 2**32, (right + 0xBB67AE85) % 2**32
    return a, b, c, d


def many_bits(seeds):
    """The first bits of the streams of many seeds, uint64 [n, 4 * TRIES + 4]."""
    key = tuple(seeds.astype(np.int64).T % 2**32)
    zero = np.zeros(len(seeds), np.uint64)
    numbers = [philox(zero + np.uint64(i), tuple(part.astype(np.uint64) for part in key)) for i in range(TRIES + 1)]
    return np.stack([bits for four in numbers for bits in four], 1)


def seeds_of(count, number=0):
    return np.random.default_rng(number).integers(-(2**31), 2**31, (count, 2)).astype(np.int32)


@pytest.fixture(scope="module")
def bits():
    """What an op draws for each of 100,000 seeds: for its window, and then for its flip."""
    return many_bits(seeds_of(COUNT)).astype(np.uint32)


def test_bits_drawn_for_many_seeds_equal_those_drawn_by_an_op(bits):
    drawn = [rng.bits(4 * TRIES + 1) for rng in rngs_of(seeds_of(COUNT)[:50])]
    np.testing.assert_array_equal(drawn, bits[:50, : 4 * TRIES + 1])


def published(height, width, count, rng):
    """[y, x, height, width], each [count]: torchvision's RandomResizedCrop, as its documentation and paper state it."""
    h, w = (
        np.full(count, side) for side in (min(height, round(width / RATIO[0])), min(width, round(height * RATIO[1])))
    )
    left = np.ones(count, bool)
    y, x = (height - h) // 2, (width - w) // 2
    for _ in range(10):
        area = height * width * rng.uniform(*AREA, count)
        ratio = np.exp(rng.uniform(math.log(RATIO[0]), math.log(RATIO[1]), count))
        tall, wide = np.sqrt(area / ratio).round().astype(int), np.sqrt(area * ratio).round().astype(int)
        taken = left & (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
        h, w = np.where(taken, tall, h), np.where(taken, wide, w)
        y = np.where(taken, rng.integers(0, np.maximum(height - tall, 0) + 1), y)
        x = np.where(taken, rng.integers(0, np.maximum(width - wide, 0) + 1), x)
        left &= ~taken
    return np.array([y, x, h, w])


@pytest.mark.parametrize("size", [(375, 500), (1000, 333), (4000, 100)])
def test_windows_are_distributed_as_published(bits, size):
    ours = windows_of(size, bits[:, : 4 * TRIES]).T
    theirs = published(*size, COUNT, np.random.default_rng(1))
    for name, of in {
        "area": lambda y, x, h, w: h * w,
        "ratio": lambda y, x, h, w: w / h,
        "y": lambda y, x, h, w: y,
        "x": lambda y, x, h, w: x,
        "y of the room": lambda y, x, h, w: y / np.maximum(size[0] - h, 1),
        "x of the room": lambda y, x, h, w: x / np.maximum(size[1] - w, 1),
    }.items():
        assert ks_2samp(of(*ours), of(*theirs)).pvalue > ALPHA, name


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 4), (9, 12)])
def test_every_window_of_a_small_image_is_as_frequent_as_published(bits, size):
    """A corner that is short by a pixel, or by one too far, is another count at once."""
    ours = windows_of(size, bits[:, : 4 * TRIES]).T
    theirs = published(*size, COUNT, np.random.default_rng(1))
    sides = (16,) * 4  # one number a window: NumPy takes a second to find what is equal among columns
    numbers, which = np.unique(np.ravel_multi_index(np.concatenate([ours, theirs], 1), sides), return_inverse=True)
    kinds = np.array(np.unravel_index(numbers, sides))
    counts = np.stack([np.bincount(part, minlength=len(numbers)) for part in np.split(which, 2)])
    often = counts.sum(0) >= 20
    assert counts[:, ~often].sum() <= 0.01 * 2 * COUNT
    assert often.sum() == 1 or chi2_contingency(counts[:, often]).pvalue > ALPHA
    for height, width in {(h, w) for h, w in kinds[2:].T.tolist() if h * w > 1}:
        here = (ours[2] == height) & (ours[3] == width)
        if here.sum() > 100 * (size[0] - height + 1) * (size[1] - width + 1):
            assert set(ours[0, here]) == set(range(size[0] - height + 1))
            assert set(ours[1, here]) == set(range(size[1] - width + 1))


def test_half_of_the_images_are_flipped_whatever_their_window_is(bits):
    flips = bits[:, 4 * TRIES] & 1
    assert binomtest(int(flips.sum()), COUNT, 0.5).pvalue > ALPHA
    _, x, h, w = windows_of((375, 500), bits[:, : 4 * TRIES]).T
    for value in (x, w * h, w / h):
        assert ks_2samp(value[flips == 0], value[flips == 1]).pvalue > ALPHA


@settings(max_examples=examples(50))
@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(0, 2**32 - 1))
def test_every_window_is_inside_of_its_image(height, width, seed):
    seeds = np.random.default_rng(seed).integers(-(2**31), 2**31, (8, 2)).astype(np.int32)
    y, x, h, w = windows((height, width), seeds).T
    assert min(y.min(), x.min()) >= 0
    assert min(h.min(), w.min()) >= 1
    assert (y + h).max() <= height
    assert (x + w).max() <= width


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


@settings(max_examples=examples(50))
@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(0, 2**32 - 1))
def test_crop_windows_equal_a_reference_computed_in_python_with_philox(height, width, seed):
    """Other windows would be another training for everyone who resumes from a checkpoint."""
    seeds = np.random.default_rng(seed).integers(-(2**31), 2**31, (4, 2)).astype(np.int32)
    ours = windows((height, width), seeds).tolist()
    assert ours == [by_hand(height, width, each) for each in seeds]


def window_of_a_graph(size, seed, area, ratio):
    """random_window as it was until ops became NumPy: a graph of TensorFlow."""
    key, counter = tf.bitcast(seed, tf.uint64)[None], tf.zeros(2, tf.uint64)
    bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[4 * TRIES + 1], key=key, counter=counter, alg=1, dtype=tf.uint32
    )
    low, high = math.log(ratio[0]), math.log(ratio[1])
    middles = [low + (i + 0.5) / 4096 * (high - low) for i in range(4096)]
    roots = np.array([round(math.exp(middle / 2) * 2**24) / 2**24 for middle in middles])
    height, width = tf.unstack(tf.cast(size, tf.float64))
    uniform = tf.reshape(tf.cast(bits[: 4 * TRIES], tf.float64) * 2.0**-32, [4, TRIES])
    root = tf.sqrt(height * width * (area[0] + uniform[0] * (area[1] - area[0])))
    side = tf.gather(roots, tf.cast(uniform[1] * 4096, tf.int32))
    drawn = tf.stack([tf.round(root / side), tf.round(root * side)])
    room = tf.stack([height, width])[:, None] - drawn
    fits = tf.reduce_all((room >= 0) & (drawn >= 1), axis=0)
    corner = tf.floor(uniform[2:] * (room + 1))
    placed = tf.gather(tf.concat([corner, drawn], 0), tf.argmax(tf.cast(fits, tf.int32)), axis=1)
    h = tf.maximum(tf.minimum(height, tf.round(width / ratio[0])), 1.0)
    w = tf.maximum(tf.minimum(width, tf.round(height * ratio[1])), 1.0)
    central = tf.stack([tf.floor((height - h) / 2), tf.floor((width - w) / 2), h, w])
    window = tf.cast(tf.where(tf.reduce_any(fits), placed, central), tf.int32)
    return tf.concat([window, tf.cast(bits[-1:] & 1, tf.int32)], 0)


@pytest.mark.parametrize(("area", "ratio"), [(AREA, RATIO), ((0.3, 0.3), (0.1, 9.0)), ((0.9, 1.0), (2.0, 2.5))])
def test_windows_and_flips_are_those_of_the_graph_that_drew_them_before(area, ratio):
    """Runs that were started then are resumed now."""
    count = 100_000 if SWEEP else 2_000
    sizes = np.exp(np.random.default_rng(2).uniform(0, math.log(9000), (count, 2))).astype(np.int32)

    @tf.function(autograph=False)
    def drawn_before(sizes, seeds):
        one = lambda each: window_of_a_graph(*each, area, ratio)  # noqa: E731
        return tf.map_fn(one, (sizes, seeds), fn_output_signature=tf.int32)

    drawn = [rng.bits(4 * TRIES + 1) for rng in rngs_of(seeds_of(count))]
    ours = [
        [*random_window(*size, bits[:-1], area, ratio), bits[-1] & 1]
        for size, bits in zip(sizes.tolist(), drawn, strict=True)
    ]
    np.testing.assert_array_equal(ours, drawn_before(sizes, seeds_of(count)))


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
