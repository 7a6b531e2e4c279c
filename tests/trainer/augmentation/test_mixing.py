"""Random numbers of records; Mixup, CutMix and the labels that they need."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pipeline.errors import InputError
from trainer import augment
from trainer.augment import beta, one_hot, uniform


def of_seeds(seeds, stream="a", count=2):
    return np.asarray(uniform({"_seed": np.asarray(seeds, np.uint32)}, stream, count))


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
    with pytest.raises(
        InputError,
        match=r"mixup draws from _seed.*it has _mask, x.*train_dataset, which delivers it",
    ):
        uniform({"x": np.zeros(2), "_mask": np.ones(2)}, "mixup", 1)


# Eager, each operation would be compiled for itself.
mixup, cutmix = (
    jax.jit(op, static_argnames=("alpha", "labels")) for op in (augment.mixup, augment.cutmix)
)


def partner(row, rows):
    return (row + rows // 2) % rows


def weights_of(mixed, batch):
    """Each row's own part, from labels that were all different."""
    return np.asarray(mixed["labels"])[
        np.arange(len(batch["labels"])), np.arange(len(batch["labels"]))
    ]


def labelled(batch):
    return batch | {"labels": jnp.eye(len(batch["labels"]))}


def test_mixup_is_its_formula_on_images_and_labels_alike(make_batch):
    batch = labelled(make_batch())
    mixed = mixup(batch, alpha=1.0)
    weights = weights_of(mixed, batch)
    images = np.asarray(batch["image"], np.float32)
    for row, weight in enumerate(weights):
        other = partner(row, 16)
        expected = images[row] * weight + images[other] * (1 - weight)
        np.testing.assert_allclose(mixed["image"][row], expected, atol=1e-3)
        assert np.isclose(mixed["labels"][row, other], 1 - weight)
    assert len(set(weights.tolist())) == 16
    assert (mixed["label"] == batch["label"]).all()


def test_cutmix_pastes_the_partners_rectangle_and_labels_by_area(make_batch):
    batch = labelled(make_batch(64, 16, 12))
    mixed = cutmix(batch)
    images, others = (
        np.asarray(batch["image"]),
        np.asarray(batch["image"])[[partner(i, 64) for i in range(64)]],
    )
    pasted = (np.asarray(mixed["image"]) == others).all(-1)
    own = (np.asarray(mixed["image"]) == images).all(-1)
    assert (pasted | own).all()
    assert mixed["image"].dtype == jnp.uint8
    np.testing.assert_allclose(weights_of(mixed, batch), own.mean((1, 2)), atol=1e-6)
    rows, columns = pasted.any(2), pasted.any(1)
    assert (pasted == rows[:, :, None] & columns[:, None, :]).all()
    assert 0 < pasted.mean() < 1


def test_cutmixs_boxes_have_the_published_sizes_and_places(make_batch):
    batch = make_batch(3000, 32, 32, 1, classes=2)
    batch |= {
        "image": jnp.broadcast_to(
            (jnp.arange(3000) // 1500)[:, None, None, None], (3000, 32, 32, 1)
        )
    }
    batch |= {"labels": jnp.eye(2)[jnp.arange(3000) // 1500]}
    own = np.asarray(cutmix(batch)["labels"])[np.arange(3000), np.arange(3000) // 1500]
    # The published algorithm in NumPy: Beta(1, 1) is uniform.
    rng = np.random.default_rng(0)
    side = (32 * np.sqrt(1 - rng.random(30_000))).astype(int)
    spans = []
    for centre in rng.integers(0, 32, (2, 30_000)):
        spans.append(np.clip(centre - side // 2 + side, 0, 32) - np.clip(centre - side // 2, 0, 32))
    assert stats.ks_2samp(own, 1 - spans[0] * spans[1] / 1024).pvalue > 1e-3


@pytest.mark.parametrize("op", [mixup, cutmix])
def test_masked_rows_are_not_mixed_with_others(make_batch, op):
    batch = labelled(make_batch(masked=(3, 12, 15)))
    mixed = op(batch, alpha=1.0)
    for row in (3, 12, 15):
        assert not mixed["image"][row].any()
        assert (mixed["image"][partner(row, 16)] == batch["image"][partner(row, 16)]).all()
        assert (mixed["labels"][partner(row, 16)] == batch["labels"][partner(row, 16)]).all()
    assert (mixed["labels"][0] != batch["labels"][0]).any()


@pytest.mark.parametrize("op", [mixup, cutmix])
def test_a_batch_of_an_odd_number_is_mixed_too(make_batch, op):
    odd = labelled(make_batch(5))
    labels = np.asarray(op(odd)["labels"])
    assert np.allclose(labels.sum(1), 1)
    assert all(labels[i, partner(i, 5)] > 0 for i in range(5))


def test_labels_are_smoothed_over_all_classes(make_batch):
    batch = make_batch() | {"label": jnp.array([1, 3, 9], jnp.int32)}
    soft = np.asarray(one_hot(batch, "label", 4, base=1, smoothing=0.2)["labels"])
    np.testing.assert_allclose(
        soft, [[0.85, 0.05, 0.05, 0.05], [0.05, 0.05, 0.85, 0.05], [0.05] * 4], atol=1e-6
    )
