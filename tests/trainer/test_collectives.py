"""What devices send each other in a training step, as the compiled program has it."""

import math
import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from trainer.config import partition_rules
from trainer.loop.train_loop import training_step
from trainer.models.transformer import Transformer
from trainer.nnx_task import nnx_task
from trainer.trainer import Trainer

pytestmark = pytest.mark.slow


@pytest.fixture
def compiled(vector_input):
    """compiled(task, config): the text of the program of one training step."""

    def compile_step(task, config, input_fn=vector_input):
        job = Trainer(task, config)._job
        opened = job.open("train", input_fn)
        program = job.program(training_step(job), (), job.abstract_state(opened), opened)
        program.compile({1})
        return program.executables[1].as_text()

    return compile_step


def shapes_of(collective, text):
    """The shapes of the results of all such instructions."""
    lines = re.findall(rf" = (.*?) {collective}(?:-start)?\(", text)
    shapes = [shape for line in lines for shape in re.findall(r"\[([\d,]*)\]", line)]
    return [tuple(map(int, filter(None, shape.split(",")))) for shape in shapes]


def apart(text):
    """The text of the computations that no loop calls, and that of those in loops."""
    computation = r"^(?:ENTRY )?%?([\w.-]+) \(.*?\) -> .*? \{\n(.*?)^\}"
    parts = dict(re.findall(computation, text, re.MULTILINE | re.DOTALL))
    loops, ahead = set(), re.findall(r"body=%?([\w.-]+)", text)
    while ahead:
        if (name := ahead.pop()) not in loops:
            loops.add(name)
            ahead += [other for other in re.findall(r"%([\w.-]+)", parts[name]) if other in parts]
    return [
        "".join(body for name, body in parts.items() if (name in loops) == inside)
        for inside in (False, True)
    ]


# numbers that tell the axes of an array apart
LAYERS, WIDTH, LENGTH, BATCH, VOCABULARY = (3, 256, 8, 12, 272)


@pytest.fixture
def language_model(make_input):
    """The task of a Transformer, from the rules of its partition, and its input."""

    def loss(model, batch):
        tokens = batch["tokens"]
        positions = jnp.broadcast_to(jnp.arange(LENGTH), tokens.shape)
        logits = model(tokens, jnp.zeros_like(tokens), positions)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean(1), {}

    def make(rules=()):
        sizes = {"layers": LAYERS, "width": WIDTH, "heads": 4}
        model = partial(Transformer, VOCABULARY, **sizes, rules=partition_rules(rules))
        return nnx_task(lambda rngs: model(rngs=rngs), loss, optax.sgd(0.1), independent_rows=True)

    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (48, LENGTH)).astype(np.int32)
    return make, lambda ctx: make_input({"tokens": tokens}, ctx)


SWIGLU = ("layers/swiglu/down/*=None,model,fsdp", "layers/swiglu/*=None,fsdp,model")


@pytest.mark.parametrize(
    ("mesh", "rules"), [("fsdp=4", ()), ("data=2,fsdp=2", ()), ("fsdp=2,model=2", SWIGLU)]
)
def test_under_fsdp_parameters_are_gathered_layer_by_layer_and_rows_stay_where_they_are(
    language_model, compiled, config, mesh, rules
):
    make, input_fn = language_model
    settings = config(global_batch_size=BATCH, mesh=mesh, partition=rules)
    text = compiled(make(rules), settings, input_fn)
    outside, inside = (shapes_of("all-gather", part) for part in apart(text))
    kernel, up = (WIDTH, 4, WIDTH // 4), (WIDTH, 704 // (2 if rules else 1))
    gathered = {tuple(size for size in shape if size > 1) for shape in inside}
    assert gathered == {kernel, kernel[1:] + kernel[:1], up, up[::-1]}
    # of each kernel, in the loop of the layers and in that of their gradients
    assert len(inside) == 2 * 7
    assert {*outside} == {(VOCABULARY, WIDTH), (WIDTH, VOCABULARY)}
    kinds = ("all-reduce", "all-to-all", "collective-permute")
    moved = [shape for kind in kinds for shape in shapes_of(kind, text)]
    assert moved
    if not rules:  # over model, products are summed for the rows of a device
        assert not any({BATCH, LENGTH} & {*shape} for shape in moved)
    assert not any(BATCH in shape for shape in moved)


def test_a_model_that_gathers_its_parameters_trains_as_one_that_has_them_all(
    language_model, config
):
    make, input_fn = language_model

    def trained(name, **settings):
        trainer = Trainer(make(), config(name, global_batch_size=BATCH, **settings))
        return trainer.train(input_fn, max_steps=3)

    whole, fsdp = trained("whole"), trained("fsdp", mesh="data=2,fsdp=2")
    assert fsdp.metrics["loss"] == pytest.approx(whole.metrics["loss"], rel=1e-6)
    params = (jax.tree.leaves(each.state.variables.params) for each in (whole, fsdp))
    for one, other in zip(*params, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-6)


@pytest.mark.parametrize(
    ("mesh", "accumulate"), [("data=4", 1), ("data=4", 4), ("data=2,model=2", 4)]
)
def test_gradients_are_summed_once_per_update_for_any_number_of_microbatches(
    language_model, compiled, config, accumulate, mesh
):
    make, input_fn = language_model
    rules = ("head/kernel=None,model",) if "model" in mesh else ()
    settings = config(global_batch_size=48, mesh=mesh, partition=rules, accumulate=accumulate)
    text = compiled(make(rules), settings, input_fn)
    outside, inside = (sum(map(math.prod, shapes_of("all-reduce", part))) for part in apart(text))
    # A layer's gradients are summed in the loop of the layers, those of several microbatches after it.
    assert (inside > 0) == (accumulate == 1)
    parameters = VOCABULARY * WIDTH * (1.5 if rules else 2)
    parameters += LAYERS * (4 * WIDTH**2 + 3 * WIDTH * 704)
    # over model, activations of the head as well
    assert outside + LAYERS * inside == pytest.approx(parameters, rel=0.03)


@pytest.mark.parametrize(("on_nan", "dtype"), [("raise", jnp.complex64), ("skip", jnp.float32)])
def test_the_check_of_every_step_gathers_no_parameter(dense_task, compiled, config, on_nan, dtype):
    def init(rng, spec):
        variables = dense_task.init(rng, spec)
        params = {name: array.astype(dtype) for name, array in variables.params.items()}
        return variables._replace(params=params)

    def loss_fn(variables, batch, rng, train):
        params = {name: array.real for name, array in variables.params.items()}
        of_reals = variables._replace(params=params)
        losses, _, outputs = dense_task.loss_fn(of_reals, batch, rng, train)
        return losses, variables, outputs

    specs = {"a": P(None, "model"), "b": P("model")}
    task = replace(dense_task, init=init, loss_fn=loss_fn)
    task = replace(task, partition=lambda name, shape: specs[name])
    text = compiled(task, config(mesh="model=2", on_nan=on_nan))
    assert shapes_of("all-reduce", text)
    assert shapes_of("all-gather", text) == []
