"""Random numbers of records: uniform, independent, and those of their own seed alone."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pipeline.errors import InputError
from trainer.augment import beta, uniform


def of_seeds(seeds, stream="a", count=2):
    return np.asarray(uniform({"_seed": np.asarray(seeds, np.uint32)}, stream, count))


def test_draws_are_uniform_and_uncorrelated_even_for_consecutive_seeds():
    drawn = of_seeds([(i, 0) for i in range(20_000)])
    for column in drawn.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.03
    assert abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 0.03
    assert drawn.min() >= 0
    assert drawn.max() < 1


def test_both_halves_of_a_seed_and_the_streams_name_matter():
    here = of_seeds([(1, 2)])
    for other in (of_seeds([(1, 3)]), of_seeds([(2, 2)]), of_seeds([(1, 2)], "b")):
        assert not (here == other).any()


def test_draws_equal_a_reference_implementation_of_threefry():
    """Threefry-2x32 by hand (Salmon et al. 2011): a run that goes on with another version of JAX draws the same."""

    def threefry(key, counter):
        def rotated(x, by):
            return (x << by | x >> 32 - by) & 0xFFFFFFFF

        keys = [*key, key[0] ^ key[1] ^ 0x1BD11BDA]
        x = [(counter[i] + keys[i]) & 0xFFFFFFFF for i in range(2)]
        for rounds in range(5):
            for by in ((13, 15, 26, 6), (17, 29, 16, 24))[rounds % 2]:
                x[0] = (x[0] + x[1]) & 0xFFFFFFFF
                x[1] = rotated(x[1], by) ^ x[0]
            x[0] = (x[0] + keys[(rounds + 1) % 3]) & 0xFFFFFFFF
            x[1] = (x[1] + keys[(rounds + 2) % 3] + rounds + 1) & 0xFFFFFFFF
        return x[0]

    crc32_of_a = 0xE8B7BE43
    for seed in ((0, 0), (1, 2), (2**32 - 1, 0x12345678)):
        expected = [(threefry(seed, (i, crc32_of_a)) >> 8) / 2**24 for i in range(3)]
        assert of_seeds([seed], count=3)[0].tolist() == expected


@pytest.mark.parametrize("alpha", [0.2, 1.0, 8.0])
def test_beta_is_distributed_as_its_name_says(alpha):
    middles = (np.arange(4096) + 0.5) / 4096  # of the parts that one value stands for
    drawn = beta(np.float32(middles), alpha)
    np.testing.assert_allclose(drawn, stats.beta(alpha, alpha).ppf(middles), atol=2**-20)
    assert (beta(np.float32([0, 1 - 2**-24]), alpha) == drawn[jnp.array([0, -1])]).all()


def test_a_batch_without_seeds_says_who_delivers_them():
    with pytest.raises(InputError, match=r"mixup draws from _seed.*it has _mask, x.*train_dataset, which delivers it"):
        uniform({"x": np.zeros(2), "_mask": np.ones(2)}, "mixup", 1)
