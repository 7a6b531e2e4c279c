"""What devices send each other in a training step, as the compiled program has it."""

import re
from dataclasses import replace

import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from trainer.modes.train import training_step
from trainer.trainer import Trainer


@pytest.fixture
def compiled(vector_input):
    """compiled(task, config): the text of the program of one training step."""

    def compile_step(task, config):
        job = Trainer(task, config)._job
        opened = job.open("train", vector_input)
        program = job.program(training_step(job), job.abstract_state(opened), opened, 1)
        program.compile({1})
        return program.executables[1].as_text()

    return compile_step


def shapes_of(collective, text):
    """The shapes of the results of all such instructions."""
    lines = re.findall(rf" = (.*?) {collective}(?:-start)?\(", text)
    return [
        tuple(map(int, filter(None, shape.split(",")))) for line in lines for shape in re.findall(r"\[([\d,]*)\]", line)
    ]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.complex64])
@pytest.mark.parametrize("on_nan", ["raise", "skip"])
def test_the_check_of_every_step_gathers_no_parameter(dense_task, compiled, config, on_nan, dtype):
    def init(rng, spec):
        variables = dense_task.init(rng, spec)
        params = {name: array.astype(dtype) for name, array in variables.params.items()}
        return variables._replace(params=params)

    def loss_fn(variables, batch, rng, train):
        params = {name: array.real for name, array in variables.params.items()}
        losses, _, outputs = dense_task.loss_fn(variables._replace(params=params), batch, rng, train)
        return losses, variables, outputs

    specs = {"a": P(None, "model"), "b": P("model")}
    task = replace(dense_task, init=init, loss_fn=loss_fn, partition=lambda name, shape: specs[name])
    text = compiled(task, config(model_parallelism=2, on_nan=on_nan))
    assert shapes_of("all-reduce", text)
    assert shapes_of("all-gather", text) == []
