"""Batch norm over a span of rows, blind to padding; the network of the MNIST recipes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pipeline.errors import OptionError
from trainer.models.resnet import BatchNorm
from trainer.models.small import PoolingCnn

ROWS, FEATURES = 12, 3
X = np.random.default_rng(0).normal(2, 3, (ROWS, 4, 5, FEATURES)).astype(np.float32)


def norm(**settings):
    return BatchNorm(FEATURES, rngs=nnx.Rngs(0), **settings)


def flax_norm():
    return nnx.BatchNorm(FEATURES, momentum=0.9, epsilon=1e-5, rngs=nnx.Rngs(0))


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_without_a_span_batch_norm_equals_that_of_flax():
    ours, theirs = norm(), flax_norm()
    close(ours(X), theirs(X))
    close(ours.mean.get_value(), theirs.mean.get_value())
    close(ours.var.get_value(), theirs.var.get_value())
    ours.eval()
    theirs.eval()
    close(ours(X), theirs(X))


def test_each_span_of_rows_is_normalized_by_itself_and_the_running_statistics_are_their_average():
    ours, parts = norm(span=4), [X[:4], X[4:8], X[8:]]
    theirs = [flax_norm() for _ in parts]
    close(ours(X), np.concatenate([each(part) for each, part in zip(theirs, parts, strict=True)]))
    close(ours.mean.get_value(), np.mean([each.mean.get_value() for each in theirs], axis=0))
    close(ours.var.get_value(), np.mean([each.var.get_value() for each in theirs], axis=0))


@pytest.mark.parametrize("span", [None, 4])
def test_rows_of_padding_do_not_count(span):
    # none of the second span counts
    mask = np.array([1, 1, 0, 1, 0, 0, 0, 0, 1, 0, 1, 1], np.float32)
    changed = np.where(mask[:, None, None, None] > 0, X, 1e6)
    first, second = norm(span=span), norm(span=span)
    rows = mask > 0
    np.testing.assert_array_equal(first(X, mask)[rows], second(changed, mask)[rows])
    np.testing.assert_array_equal(first.mean.get_value(), second.mean.get_value())
    np.testing.assert_array_equal(first.var.get_value(), second.var.get_value())
    alone = norm()
    close(
        first(X, mask)[8:][rows[8:]] if span else first(X, mask)[rows],
        alone(X[8:][rows[8:]] if span else X[rows]),
    )


def test_a_batch_of_padding_alone_changes_no_statistic():
    ours = norm()
    assert np.isfinite(ours(X, np.zeros(ROWS))).all()
    np.testing.assert_array_equal(ours.mean.get_value(), np.zeros(FEATURES))
    np.testing.assert_array_equal(ours.var.get_value(), np.ones(FEATURES))


def test_statistics_of_bfloat16_are_float32():
    ours = norm()
    made = ours(jnp.asarray(X + 300, jnp.bfloat16))
    assert made.dtype == jnp.bfloat16
    assert ours.var.get_value().dtype == jnp.float32
    assert 7 < (ours.var.get_value().max() - 0.9) / 0.1 < 11


def test_a_span_that_does_not_divide_the_rows_is_refused():
    with pytest.raises(OptionError, match="a span of 5 rows does not divide the batch of 12 rows"):
        norm(span=5)(X)


def leaves(module):
    return jax.tree.leaves(nnx.state(module, nnx.Param))


def test_the_pooling_cnn_has_the_parameter_count_of_the_tutorials():
    abstract = nnx.eval_shape(lambda: PoolingCnn(10, (28, 28, 1), nnx.Rngs(0)))
    assert sum(leaf.size for leaf in leaves(abstract)) == 421_642


def test_a_gradient_reaches_every_parameter_and_odd_sides_are_taken():
    shape = (9, 11, 3)

    @jax.jit  # one program rather than one for each operation
    def computed(images):
        model = PoolingCnn(5, shape, nnx.Rngs(0), (4, 6), 7)
        model.eval()
        grads = leaves(nnx.grad(lambda m: jnp.sum(m(images) ** 2))(model))
        return model(images), grads, model(images[:2])

    logits, grads, alone = computed(
        np.random.default_rng(0).integers(0, 256, (6, *shape)).astype(np.uint8)
    )
    assert (logits.shape, logits.dtype) == ((6, 5), jnp.float32)
    assert len(grads) == 8
    assert all(np.any(grad) for grad in grads)
    np.testing.assert_allclose(alone, logits[:2], rtol=1e-5, atol=1e-6)  # no row affects another


def test_dropout_is_random_in_training_only():
    @jax.jit
    def computed(images):
        model = PoolingCnn(5, (8, 8, 1), nnx.Rngs(0), (4,), 16)
        model.train()
        random = model(images), model(images)
        model.eval()
        return random, (model(images), model(images))

    random, same = computed(np.full((2, 8, 8, 1), 200, np.uint8))
    assert np.any(random[0] != random[1])
    np.testing.assert_array_equal(*same)
