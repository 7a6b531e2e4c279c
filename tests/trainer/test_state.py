"""Where the arrays of a state live."""

from dataclasses import replace

import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from trainer.callbacks import Callback
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


def test_a_factored_statistic_is_split_like_the_dimensions_that_it_has(cut_task):
    factored = replace(cut_task, optimizer=optax.scale_by_factored_rms(min_dim_size_to_factor=2))
    abstract = abstract_state(factored, SPEC, Placement.of(jax.devices(), {"model": 2}))
    split = {name: spec for name, spec in specs_of(abstract).items() if name.startswith("optimizer")}
    assert split == {"optimizer/v_col/a": P("model"), "optimizer/v_col/b": P("model")}


MESHES = [{}, {"mesh": "fsdp=4"}, {"mesh": "fsdp=2,model=2"}, {"mesh": "data=2,fsdp=2", "accumulate": 2}, {}]


def test_a_checkpoint_moves_between_meshes_and_the_losses_are_those_of_one_device(dense_task, vector_input, config):
    """Two steps on each mesh, one after the other."""
    specs = {"a": P(None, ("fsdp", "model")), "b": P(("fsdp", "model"))}
    task = replace(dense_task, partition=lambda name, shape: specs[name])
    losses = {"alone": [], "moved": []}

    class Losses(Callback):
        def __init__(self, name):
            self.name = name

        def on_loop_end(self, end):
            losses[self.name] += np.ravel(end.scalars["loss"]).tolist()

    def train(name, steps, devices=None, **settings):
        settings = config(name, seed=2, ema_decay=0.9, on_nan="skip", **settings)
        return Trainer(task, settings, devices, [Losses(name)]).train(vector_input, max_steps=steps)

    alone = train("alone", 10, jax.devices()[:1])
    for number, mesh in enumerate(MESHES):
        moved = train("moved", 2 * number + 2, jax.devices()[: 1 if number == 4 else 4], **mesh)
        assert moved.start_step == 2 * number
    assert losses["moved"] == pytest.approx(losses["alone"], rel=1e-5)
    for left, right in zip(jax.tree.leaves(alone.state), jax.tree.leaves(moved.state), strict=True):
        np.testing.assert_allclose(np.asarray(left), np.asarray(right), atol=1e-5)


def test_a_run_on_a_split_mesh_resumes_with_the_same_bits(cut_task, vector_input, config):
    def trained(name, *stops):
        for steps in stops:
            settings = config(name, mesh="data=2,model=2", ema_decay=0.9)
            result = Trainer(cut_task, settings).train(vector_input, max_steps=steps)
        return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(result.state)]

    assert trained("stopped", 3, 6) == trained("straight", 6)
