"""Where the arrays of a state live: split over the axes fsdp and model, on four devices, and moved between meshes."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from pipeline.errors import OptionError
from trainer.callbacks import Callback
from trainer.config import partition_rules
from trainer.mesh.placement import Placement, split_parameters
from trainer.step.state import abstract_state, init_state
from trainer.task import Task, Variables, copied
from trainer.trainer import Trainer

LAYERS = {
    "layers/up/kernel": (192, 256, 384),
    "layers/up/bias": (192, 384),
    "layers/norm/scale": (192, 512),
}
MODEL = {"embedding": (1000, 256), "head/kernel": (256, 1001), "head/bias": (1001,), **LAYERS}


def specs(shapes=MODEL, partition=copied, rules=(), **sizes):
    """Name -> spec, of the parameters that are split."""
    placement = Placement.of(jax.devices(), sizes, rules=partition_rules(rules))
    params = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}
    split = {
        name: sharding.spec
        for name, sharding in split_parameters(params, partition, placement).items()
    }
    return {name: spec for name, spec in split.items() if spec != P()}


def test_fsdp_splits_the_largest_dimension_that_it_divides():
    assert specs(fsdp=4) == {
        "embedding": P("fsdp", None),
        "head/kernel": P("fsdp", None),  # 4 does not divide 1001
        "layers/up/kernel": P(None, None, "fsdp"),
        "layers/up/bias": P(None, "fsdp"),
        "layers/norm/scale": P(None, "fsdp"),
    }


def test_a_parameter_below_the_floor_and_one_without_a_divisible_dimension_stay_complete():
    assert specs({"large": (256, 256), "small": (255, 256), "odd": (257, 1001)}, fsdp=4) == {
        "large": P("fsdp", None)
    }


def test_fsdp_is_added_to_the_partition_of_a_task_that_does_not_name_it():
    given = {
        "embedding": P("model"),
        "head/kernel": P("fsdp", None),
        "layers/up/kernel": P(None, None, "model"),
    }
    made = specs(partition=lambda name, _: given.get(name, P()), fsdp=2, model=2)
    assert made["embedding"] == P("model", "fsdp")
    assert made["head/kernel"] == P("fsdp", None)
    assert made["layers/up/kernel"] == P(None, "fsdp", "model")
    assert made["layers/up/bias"] == P(None, "fsdp")


def test_the_first_rule_that_matches_decides_alone():
    rules = ["head/*=", "*/kernel=None,fsdp+model", "layers/*=model", "head/kernel=fsdp"]
    made = specs(partition=lambda *_: P("model"), rules=rules, fsdp=2, model=2)
    assert made == {
        "embedding": P("model", "fsdp"),
        "layers/up/kernel": P(None, ("fsdp", "model")),
        "layers/up/bias": P("model"),
        "layers/norm/scale": P("model"),
    }


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"model": 4}, "no parameter is split over model"),
        ({"shapes": {"w": (8, 8)}, "fsdp": 2}, "no parameter is split over fsdp"),
        ({"rules": ["heads/*=model"], "model": 4}, r"'heads/\*' matches no parameter"),
        ({"rules": ["head/*=model"], "model": 4}, r"head/bias .* 1001 is not divisible by 4"),
        ({"rules": ["head/bias=None,model"], "model": 4}, "head/bias .* has more dimensions"),
    ],
)
def test_an_axis_without_use_and_a_rule_that_does_not_fit_are_refused(options, text):
    with pytest.raises(OptionError, match=text):
        specs(**options)


@pytest.mark.parametrize("rule", ["head", "=model", "head=tensor", "head=fsdp,,model,x"])
def test_a_rule_of_another_form_is_refused(rule, config):
    with pytest.raises(
        OptionError,
        match=re.escape(f"partition={rule!r} is not PATTERN=AXES. Give data, fsdp, model"),
    ):
        config(partition=(rule,))


def init(rng, spec):
    return Variables(
        {
            "layers": {"w": jnp.ones((4, 256, 512)), "v": jnp.ones((4, 512, 256))},
            "head": jnp.ones((256, 512)),
        }
    )


@pytest.mark.parametrize("sizes", [{"fsdp": 4}, {"fsdp": 2, "model": 2}], ids=str)
@pytest.mark.parametrize("optimizer", [optax.adam, optax.lion, lambda rate: optax.sgd(rate, 0.9)])
def test_statistics_and_averages_are_split_as_far_as_parameters(optimizer, sizes):
    rules = (
        partition_rules(["layers/*=None,fsdp,model", "head=fsdp,model"]) if "model" in sizes else ()
    )
    task = Task(init, lambda *_: None, optimizer(0.1))
    state = abstract_state(task, {}, Placement.of(jax.devices(), sizes, rules=rules), ema=True)
    for name, part in {
        "params": state.variables.params,
        "optimizer": state.optimizer,
        "ema": state.ema,
    }.items():
        # not the count, nor a blank statistic
        leaves = [leaf for leaf in jax.tree.leaves(part) if leaf.size > 4]
        on_device = sum(np.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in leaves)
        assert on_device <= sum(leaf.size for leaf in leaves) / 4, name
    layers = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim > 1 and leaf.shape[0] == 4]
    assert layers
    assert not any(leaf.sharding.spec[:1] == ("fsdp",) for leaf in layers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "settings"),
    [(4, {"mesh": "fsdp=4"}), (4, {"mesh": "data=2,fsdp=2", "accumulate": 2}), (1, {})],
    ids=str,
)
def test_a_model_may_constrain_its_activations_by_the_axes_of_the_mesh(
    dense_task, vector_input, config, settings, devices
):
    meshes = set()

    def constrained(variables, batch, *others):
        meshes.add(tuple(jax.sharding.get_abstract_mesh().shape.items()))
        x = jax.lax.with_sharding_constraint(batch["x"], P(("data", "fsdp"), None))
        return dense_task.loss_fn(variables, {**batch, "x": x}, *others)

    def predict(variables, batch):
        return {"logits": constrained(variables, batch, jax.random.key(0), False)[2]}

    specs = {"a": P(None, "fsdp"), "b": P("fsdp")}
    task = replace(
        dense_task, loss_fn=constrained, predict_fn=predict, partition=lambda name, _: specs[name]
    )
    trainer = Trainer(task, config(**settings), jax.devices()[:devices])
    trainer.train(vector_input, max_steps=2)
    assert trainer.evaluate(vector_input).proven
    assert len([*trainer.predict(vector_input)]) == 100
    (mesh,) = meshes
    assert [axis for axis, _ in mesh] == ["data", "fsdp", "model"]
    assert np.prod([size for _, size in mesh]) == devices
    assert jax.sharding.get_abstract_mesh().empty


SPEC = {"x": jax.ShapeDtypeStruct((16, 8), np.float32)}


@pytest.fixture
def cut_task(dense_task):
    """The dense task with its parameters cut over the model axis."""
    return replace(
        dense_task, partition=lambda name, shape: {"a": P(None, "model"), "b": P("model")}[name]
    )


def specs_of(state):
    """Name of an array -> how it is cut, for those that are."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    named = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.sharding.spec
        for path, leaf in leaves
    }
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


MESHES = [(4, {}), (4, {"mesh": "fsdp=4"}), (4, {"mesh": "fsdp=2,model=2"}), (1, {})]


@pytest.mark.slow
def test_a_checkpoint_moves_between_meshes_and_the_losses_are_those_of_one_device(
    dense_task, vector_input, config
):
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

    alone = train("alone", 2 * len(MESHES), jax.devices()[:1])
    for number, (devices, mesh) in enumerate(MESHES):
        moved = train("moved", 2 * number + 2, jax.devices()[:devices], **mesh)
        assert moved.start_step == 2 * number
    assert losses["moved"] == pytest.approx(losses["alone"], rel=1e-5)
    for left, right in zip(jax.tree.leaves(alone.state), jax.tree.leaves(moved.state), strict=True):
        np.testing.assert_allclose(np.asarray(left), np.asarray(right), atol=1e-5)


@pytest.mark.slow
def test_a_run_on_a_split_mesh_resumes_with_the_same_bits(cut_task, vector_input, config):
    def trained(name, *stops):
        for steps in stops:
            settings = config(name, mesh="data=2,model=2", ema_decay=0.9)
            result = Trainer(cut_task, settings).train(vector_input, max_steps=steps)
        return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(result.state)]

    assert trained("stopped", 3, 6) == trained("straight", 6)
