"""Where the arrays of a state live."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from trainer.mesh import Placement
from trainer.state import abstract_state, init_state
from trainer.trainer import Trainer

SPEC = {"x": jax.ShapeDtypeStruct((16, 8), np.float32)}


@pytest.fixture
def cut_task(dense_task):
    """The dense task with its parameters cut over the model axis."""
    return replace(dense_task, partition=lambda name, shape: {"a": P(None, "model"), "b": P("model")}[name])


def specs_of(state):
    """Name of an array -> how it is cut, for those that are."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.sharding.spec for path, leaf in leaves}
    return {name: spec for name, spec in named.items() if spec != P()}


def test_parameters_and_optimizer_statistics_are_sharded_as_the_task_specifies(cut_task):
    placement = Placement.of(jax.devices(), {"model": 2})
    abstract = abstract_state(cut_task, SPEC, placement)
    a, b = P(None, "model"), P("model")
    assert specs_of(abstract) == {
        "variables/params/a": a, "variables/params/b": b,
        "optimizer/0/mu/a": a, "optimizer/0/mu/b": b, "optimizer/0/nu/a": a, "optimizer/0/nu/b": b,
    }  # fmt: skip
    made = init_state(cut_task, 0, SPEC, placement)
    assert specs_of(made) == specs_of(abstract)
    assert made.variables.params["a"].addressable_shards[0].data.shape == (8, 8)


def test_a_sharded_model_trains_like_a_replicated_one_and_resumes_in_either_layout(cut_task, vector_input, config):
    def trained(name, steps, **settings):
        settings = config(name, seed=2, **settings)
        return Trainer(cut_task, settings).train(vector_input, max_steps=steps)

    whole, cut = trained("whole", 4), trained("cut", 2, mesh="model=4")
    assert len(cut.state.variables.params["a"].addressable_shards[0].data[0]) == 4
    resumed = trained("cut", 4)
    assert (resumed.start_step, resumed.step) == (2, 4)
    for left, right in zip(jax.tree.leaves(whole.state), jax.tree.leaves(resumed.state), strict=True):
        np.testing.assert_allclose(np.asarray(left), np.asarray(right), atol=1e-5)
