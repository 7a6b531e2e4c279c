"""A second run finds its programs on disk."""

from collections import Counter

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from trainer.task import Task, Variables
from trainer.trainer import Trainer


@pytest.fixture
def compilations():
    """compilations(): how often JAX looked into its cache since the last call, and how often it found something."""
    counts = Counter()

    def count(event, **_):
        counts[event.rpartition("/")[2]] += 1

    def since():
        looked, found = counts["compile_requests_use_cache"], counts["cache_hits"]
        counts.clear()
        return looked, found

    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)  # JAX's default
    jax.monitoring.register_event_listener(count)
    yield since
    jax.monitoring.unregister_event_listener(count)
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture
def smallest_task():
    def loss_fn(variables, batch, rng, train):
        return jnp.square(batch["x"] @ variables.params), variables, None

    return Task(lambda rng, spec: Variables(jnp.zeros(8)), loss_fn, optax.sgd(0.1))


def test_a_second_run_compiles_nothing(smallest_task, vector_input, config, tmp_path, compilations):
    def run(name):
        jax.clear_caches()  # what a new process does not have
        trainer = Trainer(smallest_task, config(name, compilation_cache_dir=str(tmp_path / "cache")))
        trainer.train(vector_input, steps=1)
        trainer.evaluate(vector_input)
        return compilations()

    looked, found = run("first")
    assert looked - found >= 3  # the state, a step of training, one of evaluation
    kept = sorted((tmp_path / "cache").iterdir())
    assert run("second") == (looked, looked)
    assert sorted((tmp_path / "cache").iterdir()) == kept
