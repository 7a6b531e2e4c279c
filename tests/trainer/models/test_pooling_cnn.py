"""The network of the MNIST recipes."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from trainer.models.cnn import PoolingCnn


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

    logits, grads, alone = computed(np.random.default_rng(0).integers(0, 256, (6, *shape)).astype(np.uint8))
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
