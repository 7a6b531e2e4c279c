"""Equal trainings, dispatched in different ways and compiled as users' are: training_bits.py DIRECTORY DEVICES ...

The last line is JSON: of each training by name `state`, a digest of all bits of its final state, and `executables`;
for the convolution net also how far its scan is from its single steps. It is a process of its own because the tests'
process compiles without optimizations, and these decide which bits a program computes."""

import hashlib
import itertools
import json
import logging
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

from trainer.config import TrainerConfig
from trainer.task import Task, Variables
from trainer.trainer import Trainer

DENSE = {  # name: (devices, steps per dispatch)
    "dense 1x1": (1, 1),
    "dense 1x50": (1, 50),
    "dense 1x1h": (1, "1h"),
    "dense 4x1": (4, 1),
    "dense 4x7": (4, 7),
}


def init(*shapes):
    """Parameters that cost no program of random numbers."""
    return lambda rng, spec: Variables(
        [jnp.sin(7.0 * jnp.arange(1, np.prod(s) + 1)).reshape(s) * 0.5 for s in shapes]
    )


def dense_task():
    """Two dense layers, Adam, and noise on the input from the step's key, so that a wrong key shows."""

    def loss_fn(variables, batch, rng, train):
        a, b = variables.params
        logits = jnp.tanh((batch["x"] + 0.1 * jax.random.uniform(rng, batch["x"].shape)) @ a) @ b
        return (
            optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]),
            variables,
            logits,
        )

    return Task(init((8, 16), (16, 3)), loss_fn, optax.adam(1e-2))


def net_task():
    """A convolution of 3x3 with stride 2 and a dense layer, SGD with momentum."""

    def loss_fn(variables, batch, rng, train):
        kernel, head = variables.params
        layout = ("NHWC", "HWIO", "NHWC")
        hidden = jax.lax.conv_general_dilated(
            batch["x"] / 255.0, kernel, (2, 2), "SAME", dimension_numbers=layout
        )
        logits = jax.nn.relu(hidden).reshape(len(hidden), -1) @ head
        return (
            optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]),
            variables,
            logits,
        )

    return Task(init((3, 3, 1, 4), (64, 3)), loss_fn, optax.sgd(0.1, momentum=0.9))


def vectors(rng):
    return rng.standard_normal((16, 8)).astype(np.float32)


def images(rng):
    return rng.integers(0, 256, (16, 8, 8, 1)).astype(np.uint8)


def input_fn_of(records):
    def input_fn(ctx):
        for step in itertools.count(ctx.start_step):
            rng = np.random.default_rng(step)
            yield {"x": records(rng), "label": rng.integers(0, 3, 16).astype(np.int32)}

    return input_fn


def main(directory, counts):
    jax.config.update("jax_num_cpu_devices", 4)
    logging.basicConfig(level=logging.INFO, force=True)
    report = {}

    def trained(name, task, records, steps, devices, **settings):
        config = TrainerConfig(workdir=f"{directory}/{name}", global_batch_size=16, **settings)
        result = Trainer(task, config, jax.devices()[:devices]).train(
            input_fn_of(records), max_steps=steps
        )
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(result.state)]
        digest = hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()
        report[name] = {"state": digest, "executables": result.executables}
        return leaves

    for name, (devices, k) in DENSE.items():
        if devices not in counts:
            continue
        # The checkpoint of step 50 also cuts the dispatches of an hour to 50 steps.
        trained(
            name,
            dense_task(),
            vectors,
            103,
            devices,
            iterations_per_loop=k,
            checkpoint_every_steps=50,
        )
    nets = [
        trained(mode, net_task(), images, 14, 1, iterations_per_loop=7, loop_mode=mode)
        for mode in ("scan", "step", "auto")
    ]
    report["scan"]["distance"] = max(
        float(np.abs(a - b).max()) for a, b in zip(*nets[:2], strict=True)
    )
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], [int(count) for count in sys.argv[2:]])
