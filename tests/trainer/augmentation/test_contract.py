"""What every device op promises, a row each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pipeline.errors import InputError, OptionError
from trainer.augment import color_jitter, cutmix, mixup, normalize, one_hot, random_erasing

OPS = {
    "color_jitter": lambda batch: color_jitter(batch, brightness=0.4, contrast=0.4, saturation=0.4),
    "random_erasing": lambda batch: random_erasing(batch, probability=0.7),
    "mixup": lambda batch: mixup(batch, alpha=1.0),
    "cutmix": cutmix,
    "one_hot": lambda batch: one_hot(batch, "label", 5, base=1, smoothing=0.1),
    "normalize": lambda batch: batch | {"image": normalize(batch["image"])},
}
MIXING = ("mixup", "cutmix")
# eager, each operation would be compiled for itself
COMPILED = {name: jax.jit(op) for name, op in OPS.items()}


def ops(names=OPS):
    return pytest.mark.parametrize("op", [COMPILED[name] for name in names], ids=names)


def placed(batch, devices):
    mesh = Mesh(np.asarray(jax.devices()[:devices]), ("data",))
    return jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))


@ops()
def test_one_device_and_four_agree(make_batch, op):
    batch = make_batch(masked=(5,))
    one, four = (op(placed(batch, devices)) for devices in (1, 4))
    for key in one:
        np.testing.assert_allclose(four[key], one[key], rtol=1e-6, atol=1e-4)
        assert one[key].dtype == four[key].dtype


@ops()
def test_an_augmentation_keeps_the_other_keys_unchanged(make_batch, op):
    batch = make_batch()
    made = op(batch)
    for key in ("label", "_mask", "_seed"):
        assert (made[key] == batch[key]).all()
    assert made.keys() == batch.keys()


@ops([name for name in OPS if name not in MIXING])
def test_a_row_depends_on_no_other_row(make_batch, op):
    batch = make_batch()
    order = np.random.default_rng(0).permutation(16)
    made, others = op(batch), op({key: value[order] for key, value in batch.items()})
    for key in made:
        np.testing.assert_allclose(others[key], made[key][order], rtol=1e-6, atol=1e-4)


@ops()
def test_values_in_padding_never_affect_other_rows(make_batch, op):
    batch = make_batch(masked=(2, 9))
    padding = batch["_mask"] == 0
    dirty = batch | {
        "image": jnp.where(padding[:, None, None, None], 255, batch["image"]),
        "labels": jnp.where(padding[:, None], 7.0, batch["labels"]),
        "_seed": jnp.where(padding[:, None], 99, batch["_seed"]),
    }
    clean, dirtied = op(batch), op(dirty)
    for key in clean:
        assert (clean[key][~padding] == dirtied[key][~padding]).all()


@ops(["color_jitter", "random_erasing", *MIXING])
def test_an_augmentation_depends_only_on_image_and_seed(make_batch, op):
    batch, other = make_batch(), make_batch(salt=1)
    assert (op(batch)["image"] == op(batch | {"_index": jnp.arange(16)})["image"]).all()
    assert (op(batch)["image"] != op(batch | {"_seed": other["_seed"]})["image"]).any()


def normalized(statistics):
    return lambda batch: normalize(batch["image"], statistics)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda b: color_jitter(b, saturation=0.1), InputError, "color_jitter: 'image' has 1 channels; it must have 3"),
        (lambda b: color_jitter(b, "imag"), InputError, "color_jitter reads 'imag', which the batch does not have. Did you mean 'ima"),
        (lambda b: color_jitter(b, "labels"), InputError, r"'labels' is float32 \[16, 5\]; it must be images \[b, height, width, chan"),
        (lambda b: color_jitter(b, contrast=-1), OptionError, "color_jitter: contrast=-1 must be at least 0 and below inf"),
        (normalized("imagnet"), OptionError, r"unknown statistics='imagnet'. Did you mean 'imagenet'"),
        (normalized("imagenet"), InputError, "have 1 channels, the statistics 3"),
        (normalized(([0.5], [0.0])), OptionError, r"the deviations \[0.0\] must not be 0"),
        (lambda b: random_erasing(b, probability=1.5), OptionError, r"probability=1.5, area=\(0.02, 0.3333"),
        (lambda b: random_erasing(b, area=(0.5, 0.1)), OptionError, r"area two ascending numbers in \(0, 1\]"),
        (lambda b: mixup(b, labels="soft"), InputError, r"mixup mixes 'soft', which is not in the batch.*Call one_hot first"),
        (lambda b: cutmix(b, labels="label"), InputError, "cutmix mixes 'label', which is int32"),
        (lambda b: mixup(b, alpha=0), OptionError, "mixup: alpha=0 must be above 0 and below inf"),
        (lambda b: one_hot(b, "label", 4, smoothing=1), OptionError, "one_hot: smoothing=1 must"),
        (lambda b: one_hot(b, "labl", 4), InputError, "one_hot reads 'labl', which the batch does not have. Did you mean 'label'"),
    ],
)  # fmt: skip
def test_what_an_op_cannot_use_is_refused(make_batch, call, error, text):
    with pytest.raises(error, match=text):
        call(make_batch(channels=1))
