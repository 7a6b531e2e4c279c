"""What test_stuck_hosts.py has its processes do: a training with evaluations, in which one host never goes on."""

import ctypes
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import orbax.checkpoint as ocp
from host_task import NumberedInput, checksums, dense_task, settings

from trainer.callbacks import Callback
from trainer.task import Task
from trainer.trainer import Trainer

STEPS, EVERY, RECORDS = 40, 10, 480
FOREVER = 10_000.0
# The limits of TrainerConfig, divided by about ten.
LIMITS = {
    "compile_seconds": 20.0,
    "callback_seconds": 8.0,
    "evaluation_seconds": 8.0,
    "save_seconds": 8.0,
    "stall_seconds": 8.0,
}


def stuck(order):
    """Host `order.host` does what `order.how` says, for ever, at step `order.at`; without one, all train to the end."""
    mine = order.host == jax.process_index()
    how, at = (order.how if mine else ""), order.at

    def hang():
        Path(order.out, "hung").write_text(str(time.time()))
        if how == "lock":
            ctypes.PyDLL(None).sleep(int(FOREVER))  # PyDLL: with Python's lock
        elif how == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            time.sleep(FOREVER)

    class Hanging(Callback):
        def on_loop_end(self, end):
            if how in ("callback", "lock", "stopped") and end.step >= at:
                hang()
            if order.slow:  # not stuck
                time.sleep(order.slow)

        def on_evaluation_end(self, end):
            if how == "evaluation" and end.result.step >= at:
                hang()

    class Input(NumberedInput):
        def batches(self, position):
            for step, batch in enumerate(super().batches(position), position):
                if how == "input" and self.ctx.mode == "train" and step >= at:
                    hang()
                yield batch

    if how == "save":
        save = ocp.CheckpointManager.save

        def saved(manager, step, **options):
            if step >= at:
                hang()
            return save(manager, step, **options)

        ocp.CheckpointManager.save = saved

    def device(step):
        if how == "device" and step >= at:
            hang()

    task = dense_task()
    if order.how == "device":
        task = replace(task, loss_fn=with_call(task, device))
    config = settings(order, iterations_per_loop=order.k, checkpoint_every_steps=EVERY, **LIMITS)
    trainer = Trainer(task, config, callbacks=[Hanging()])
    result = trainer.train_and_evaluate(
        lambda ctx: Input(ctx, RECORDS), lambda ctx: Input(ctx, RECORDS), max_steps=STEPS, eval_every_steps=EVERY
    )
    yield "trained", [result.step, checksums(result.state)]


def with_call(task: Task, call):
    """The task's loss, which calls a function of the host from every device of training."""
    made = [0]

    def called(loss):
        made[0] += 1
        call(made[0])
        return loss

    def loss_fn(variables, batch, rng, train):
        loss, *others = task.loss_fn(variables, batch, rng, train)
        if train:
            loss = loss + 0 * jax.lax.stop_gradient(
                jax.pure_callback(called, jax.ShapeDtypeStruct(loss.shape, loss.dtype), jax.lax.stop_gradient(loss))
            )
        return loss, *others

    return loss_fn
