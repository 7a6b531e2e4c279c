"""A small training that stops or kills itself at moments of its saves: python killed_run.py WORKDIR STOP KILL EVENT.

Just before every change that Python makes to the checkpoint of step STOP, and before every fourth to the old one that
goes for it, the whole process stops; before the change EVENT to that of step KILL it is killed. Tests run the same
training in their own process, without that."""

import os
import signal
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from trainer.config import TrainerConfig
from trainer.task import Task, Variables
from trainer.trainer import Trainer

STEPS, EVERY = 30, 10
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "open"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def train(workdir):
    """The training to its end, from the newest checkpoint on."""

    def loss_fn(variables, batch, rng, train):
        error = batch["x"] @ variables.params["w"] + variables.params["b"] - batch["y"]
        return jnp.mean(error**2, axis=-1), variables, error

    def input_fn(ctx):
        for step in range(ctx.start_step, STEPS):
            x = np.random.default_rng(step).standard_normal((4, 64)).astype(np.float32)
            yield {"x": x, "y": np.tanh(x)}

    task = Task(
        lambda rng, spec: Variables({"w": jnp.zeros((64, 64)), "b": jnp.zeros(64)}),
        loss_fn,
        optax.adam(0.1),
    )
    config = TrainerConfig(
        workdir=str(workdir),
        global_batch_size=4,
        iterations_per_loop=EVERY,
        checkpoint_every_steps=EVERY,
        keep_max=1,
    )
    return Trainer(task, config, jax.devices()[:1]).train(input_fn, max_steps=STEPS)


def main(workdir, stop, kill, event):
    """Never returns where it kills itself."""
    checkpoints, pid = Path(workdir, "checkpoints"), os.getpid()
    count, removed, emptied = 0, 0, None

    def hook(name, args):
        nonlocal count, removed, emptied
        if not (name in CHANGES and (name != "open" or args[2] & WRITING)):
            return
        path = Path(str(args[0]))
        if name == "shutil.rmtree":
            emptied = path  # what is in it is told without it
        at = path if path.is_absolute() else emptied
        if at is None or checkpoints not in at.parents:
            return
        step = int(at.relative_to(checkpoints).parts[0].partition(".")[0])
        removed += emptied is at
        if stop and (step == stop or (emptied is at and removed % 4 == 1)):
            # this one stops at once, not a step later
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        count += step == kill
        if count == event:
            os.kill(pid, signal.SIGKILL)

    sys.addaudithook(hook)
    train(workdir)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
