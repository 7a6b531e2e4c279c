"""How parameters and what follows them are split over the axes fsdp and model, on four devices."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from pipeline.errors import OptionError
from trainer.mesh import Placement, split_parameters, stacked
from trainer.mesh_flags import partition_rules
from trainer.state import abstract_state
from trainer.task import Task, Variables, copied
from trainer.trainer import Trainer

LAYERS = {"layers/up/kernel": (512, 256, 384), "layers/up/bias": (512, 384), "layers/norm/scale": (512, 256)}
MODEL = {"embedding": (1000, 256), "head/kernel": (256, 1001), "head/bias": (1001,), **LAYERS}


def specs(shapes=MODEL, partition=copied, rules=(), **sizes):
    """Name -> spec, of the parameters that are split."""
    placement = Placement.of(jax.devices(), sizes, rules=partition_rules(rules))
    params = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}
    split = {name: sharding.spec for name, sharding in split_parameters(params, partition, placement).items()}
    return {name: spec for name, spec in split.items() if spec != P()}


def test_fsdp_splits_the_largest_dimension_that_it_divides_but_never_that_of_the_layers():
    assert stacked(MODEL) == {*LAYERS}
    assert specs(fsdp=4) == {
        "embedding": P("fsdp", None),
        "head/kernel": P("fsdp", None),  # 4 does not divide 1001
        "layers/up/kernel": P(None, None, "fsdp"),
        "layers/up/bias": P(None, "fsdp"),
        "layers/norm/scale": P(None, "fsdp"),
    }


def test_a_parameter_below_the_floor_and_one_without_a_divisible_dimension_stay_complete():
    assert specs({"large": (256, 256), "small": (255, 256), "odd": (257, 1001)}, fsdp=4) == {"large": P("fsdp", None)}


def test_fsdp_is_added_to_the_partition_of_a_task_that_does_not_name_it():
    given = {"embedding": P("model"), "head/kernel": P("fsdp", None), "layers/up/kernel": P(None, None, "model")}
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
    with pytest.raises(OptionError, match=re.escape(f"partition={rule!r} is not PATTERN=AXES. Give data, fsdp, model")):
        config(partition=(rule,))


def init(rng, spec):
    return Variables(
        {"layers": {"w": jnp.ones((4, 256, 512)), "v": jnp.ones((4, 512, 256))}, "head": jnp.ones((256, 512))}
    )


@pytest.mark.parametrize("sizes", [{"fsdp": 4}, {"fsdp": 2, "model": 2}], ids=str)
@pytest.mark.parametrize("optimizer", [optax.adam, optax.adafactor, optax.lion, lambda rate: optax.sgd(rate, 0.9)])
def test_statistics_and_averages_are_split_as_far_as_parameters(optimizer, sizes):
    rules = partition_rules(["layers/*=None,fsdp,model", "head=fsdp,model"]) if "model" in sizes else ()
    task = Task(init, lambda *_: None, optimizer(0.1))
    state = abstract_state(task, {}, Placement.of(jax.devices(), sizes, rules=rules), ema=True)
    for name, part in {"params": state.variables.params, "optimizer": state.optimizer, "ema": state.ema}.items():
        leaves = [leaf for leaf in jax.tree.leaves(part) if leaf.size > 4]  # not the count, nor a blank statistic
        on_device = sum(np.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in leaves)
        parts = 2 if optimizer is optax.adafactor and "model" in sizes else 4  # a row or a column has one of two axes
        assert on_device <= sum(leaf.size for leaf in leaves) / parts, name
    layers = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim > 1 and leaf.shape[0] == 4]
    assert layers
    assert not any(leaf.sharding.spec[:1] == ("fsdp",) for leaf in layers)


@pytest.mark.parametrize("settings", [{}, {"mesh": "fsdp=4"}, {"mesh": "data=2,fsdp=2", "accumulate": 2}], ids=str)
@pytest.mark.parametrize("devices", [4, 1])
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

    if devices == 1:
        settings = {name: value for name, value in settings.items() if name != "mesh"}
    specs = {"a": P(None, "fsdp"), "b": P("fsdp")}
    task = replace(dense_task, loss_fn=constrained, predict_fn=predict, partition=lambda name, _: specs[name])
    trainer = Trainer(task, config(**settings), jax.devices()[:devices])
    trainer.train(vector_input, max_steps=2)
    assert trainer.evaluate(vector_input).proven
    assert len([*trainer.predict(vector_input)]) == 100
    (mesh,) = meshes
    assert [axis for axis, _ in mesh] == ["data", "fsdp", "model"]
    assert np.prod([size for _, size in mesh]) == devices
    assert jax.sharding.get_abstract_mesh().empty
