"""Gradients added up over microbatches are those of the whole batch."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.errors import OptionError
from trainer.optimizers.build import make_optimizer
from trainer.optimizers.config import OptimizerConfig, Run
from trainer.step.gradients import accumulated, gradients, microbatches
from trainer.step.steps import train_step
from trainer.task import Task, TrainState, Variables
from trainer.trainer import Trainer

ROWS = 12
KEY = jax.random.key(0)


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


@pytest.fixture(scope="module")
def noiseless(dense_task):
    """A task without random numbers, which each microbatch draws anew."""
    return replace(
        dense_task,
        loss_fn=lambda *given: dense_task.loss_fn(*given[:3], False),
        optimizer=optax.sgd(0.1),
    )


@pytest.fixture(scope="module")
def variables(dense_task, vectors):
    return dense_task.init(KEY, vectors)


def batch_of(vectors, mask):
    rows = {key: jnp.asarray(array[: len(mask)]) for key, array in vectors.items()}
    return rows | {"_mask": jnp.asarray(mask, jnp.float32)}


@pytest.fixture(scope="module")
def computed(noiseless, variables):
    """computed(batch, count): the gradients, and those of `count` microbatches."""
    whole = jax.jit(partial(gradients, noiseless, rng=KEY))
    parts = jax.jit(partial(accumulated, noiseless, rng=KEY))
    return lambda batch, count: (
        whole(variables, batch),
        parts(variables, microbatches(batch, count)),
    )


@given(counts=st.lists(st.booleans(), min_size=ROWS, max_size=ROWS), count=st.sampled_from([3, 4]))
# microbatch 0 has no row that counts
@example(counts=[number % 4 > 0 for number in range(ROWS)], count=4)
@settings(deadline=None, max_examples=20)
def test_accumulated_gradients_equal_those_of_the_batch_for_any_mask(
    computed, vectors, counts, count
):
    whole, parts = computed(batch_of(vectors, counts), count)
    for of_whole, of_parts in zip(leaves(whole), leaves(parts), strict=True):
        np.testing.assert_allclose(of_parts, of_whole, rtol=1e-5, atol=1e-6)


def test_each_microbatch_has_its_own_key_and_passes_extra_arrays_to_the_next(dense_task, vectors):
    def loss_fn(variables, batch, rng, train):
        drawn = jax.random.uniform(rng)
        losses = drawn * variables.params["w"] * jnp.ones(4)
        return (
            losses,
            variables._replace(extra={"seen": variables.extra["seen"] * 2 + batch["x"][0, 0]}),
            {},
        )

    task = replace(dense_task, loss_fn=loss_fn, metrics={})
    variables = Variables({"w": jnp.float32(1)}, {"seen": jnp.float32(0)})
    made = accumulated(task, variables, microbatches(batch_of(vectors, np.ones(8)), 2), KEY)
    x = vectors["x"]
    assert made.extra["seen"] == 2 * x[0, 0] + x[1, 0]  # microbatch i has rows i, i + 2, ...
    keys = [jax.random.uniform(jax.random.fold_in(KEY, number)) for number in range(2)]
    np.testing.assert_allclose(made.of_params["w"], np.mean(keys), rtol=1e-6)


def test_gradients_are_added_in_float32(dense_task, vectors):
    def loss_fn(variables, batch, rng, train):
        return variables.params["w"] * batch["x"][:, 0].astype(jnp.bfloat16), variables, {}

    task = replace(dense_task, loss_fn=loss_fn, metrics={})
    batch = {"x": jnp.array([[256.0], [1.0], [1.0], [1.0]]), "_mask": jnp.ones(4)}
    made = accumulated(task, Variables({"w": jnp.bfloat16(1)}), microbatches(batch, 4), KEY)
    assert made.of_params["w"] == jnp.bfloat16(259 / 4)  # in bfloat16, 256 + 1 is 256


def test_microbatches_move_no_rows_between_devices(dense_task, variables, vectors):
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    batch = jax.device_put(batch_of(vectors, np.ones(32)), rows)
    program = jax.jit(lambda batch: accumulated(dense_task, variables, microbatches(batch, 4), KEY))
    text = program.lower(batch).compile().as_text()
    assert "all-reduce" in text
    assert not any(moved in text for moved in ("all-gather", "all-to-all", "collective-permute"))


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 10])
def test_a_training_with_microbatches_is_that_with_whole_batches(
    noiseless, vector_input, config, k
):
    def trained(name, **settings):
        trainer = Trainer(
            noiseless, config(name, iterations_per_loop=k, **settings), devices=jax.devices()[:2]
        )
        return leaves(trainer.train(vector_input, max_steps=10).state.variables)

    for whole, parts in zip(trained("whole"), trained("parts", accumulate=4), strict=True):
        np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("mesh", ["data=4", pytest.param("data=2,fsdp=2", marks=pytest.mark.slow)])
def test_independent_rows_are_added_up_apart_to_the_same_training(
    noiseless, make_input, vectors, config, mesh
):
    x = np.where(np.arange(100)[:, None] % 3 > 0, vectors["x"], 0)
    specs = {"a": jax.sharding.PartitionSpec(None, "fsdp"), "b": jax.sharding.PartitionSpec("fsdp")}

    def trained(name, task, **settings):
        def input_fn(ctx):  # the mask differs between devices and microbatches
            made = make_input({**vectors, "x": x}, ctx)
            whole = made._batch
            made._batch = lambda step: {
                **(batch := whole(step)),
                "_mask": (batch["x"][:, 0] != 0).astype(np.float32),
            }
            return made

        task = replace(task, partition=lambda name, _: specs[name])
        result = Trainer(task, config(name, mesh=mesh, **settings)).train(input_fn, max_steps=6)
        return leaves(result.state.variables), result.metrics

    whole, expected = trained("whole", noiseless)
    apart, found = trained(
        "apart", replace(noiseless, independent_rows=True), accumulate=4 if mesh == "data=4" else 2
    )
    for of_whole, of_parts in zip(whole, apart, strict=True):
        np.testing.assert_allclose(of_parts, of_whole, rtol=1e-5, atol=1e-7)
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_count_that_does_not_divide_the_rows_of_a_device_is_refused(dense_task, config):
    with pytest.raises(OptionError, match="accumulate=3 does not divide the 4 rows of each device"):
        Trainer(dense_task, config(accumulate=3))


DEEP = 6


def deep_task(optimizer):
    """Six layers of 64 features and a head."""

    def loss_fn(variables, batch, rng, train):
        x = batch["x"]
        for layer in range(DEEP):
            x = jnp.tanh(x @ variables.params[f"layer{layer}"])
        logits = x @ variables.params["head"]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        return losses, variables, logits

    def init(rng, _):
        keys = jax.random.split(rng, DEEP + 1)
        layers = {f"layer{n}": jax.random.normal(keys[n], (64, 64)) / 8 for n in range(DEEP)}
        return Variables(layers | {"head": jax.random.normal(keys[DEEP], (64, 3)) / 8})

    return Task(init, loss_fn, optimizer)


def by_hand(trained):
    """An optimizer of a user's own that freezes the rest: recipes' is only one of many."""
    kinds = lambda params: {name: "yes" if name in trained else "no" for name in params}  # noqa: E731
    return optax.partition({"yes": optax.adam(0.1), "no": optax.set_to_zero()}, kinds)


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"accumulate": 2, "unroll": True}])
def test_a_step_computes_nothing_for_parameters_that_are_frozen(options):
    rng = np.random.default_rng(0)
    batch = {
        "x": jnp.asarray(rng.normal(size=(32, 64)), jnp.float32),
        "label": jnp.zeros(32, jnp.int32),
        "_mask": jnp.ones(32, jnp.float32),
    }
    flops, after = {}, {}
    for name, optimizer in {
        "all": optax.adam(0.1),
        "head": by_hand(["head"]),
        "built": make_optimizer(OptimizerConfig(learning_rate=0.1, freeze=("layer*",)), Run(9, 32)),
    }.items():
        task = deep_task(optimizer)
        variables = task.init(KEY, batch)
        begun = optimizer.init(variables.params)
        state = TrainState(jnp.int32(0), variables, begun, jax.random.key_data(KEY), ())
        step = jax.jit(train_step(task, **options)).lower(state, batch).compile()
        flops[name] = step.cost_analysis()["flops"]
        after[name], scalars = step(state, batch)
        assert scalars["grad_norm"] > 0
    ours, theirs = after["head"].variables.params, after["all"].variables.params
    np.testing.assert_allclose(ours["head"], theirs["head"], atol=1e-6)
    for layer in range(DEEP):
        np.testing.assert_array_equal(ours[f"layer{layer}"], variables.params[f"layer{layer}"])
    assert max(flops["head"], flops["built"]) < 0.45 * flops["all"]
