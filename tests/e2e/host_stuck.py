"""What test_stuck_hosts.py has its processes do: a training with evaluations, in which one host never goes on."""

import ctypes
import os
import signal
import time
import zlib
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from host_task import NumberedInput, class_scores, dense_task, settings

from trainer.callbacks import Callback
from trainer.checkpoints import get_variable_names, get_variable_value
from trainer.trainer import Trainer

STEPS, EVERY, RECORDS = 40, 10, 480
FOREVER = 10_000
# The limits of TrainerConfig, divided by about ten or more.
LIMITS = {
    "compile_seconds": 20.0,
    "callback_seconds": 8.0,
    "evaluation_seconds": 8.0,
    "save_seconds": 8.0,
    "stall_seconds": 8.0,
}


class Hang:
    """Hangs once the run does what `order.how` says at step `order.at`, on host `order.host`."""

    def __init__(self, order):
        self.order = order
        self.how = order.how if order.host == jax.process_index() else ""

    def __call__(self, ways, step):
        if self.how not in ways or step < self.order.at:
            return
        Path(self.order.out, "hung").write_text(str(time.time()))
        if self.how == "lock":
            ctypes.PyDLL(None).sleep(FOREVER)  # PyDLL: with Python's lock
        elif self.how == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            time.sleep(FOREVER)


class Hanging(Callback):
    def __init__(self, hang):
        self.hang = hang

    def on_loop_end(self, end):
        self.hang(("callback", "lock", "stopped"), end.step)
        if jax.process_index() == 1:
            time.sleep(self.hang.order.slow)  # slow is not stuck

    def on_evaluation_end(self, end):
        self.hang(("evaluation",), end.result.step)


class HangingInput(NumberedInput):
    def __init__(self, ctx, hang):
        super().__init__(ctx, RECORDS)
        self.hang = hang

    def batches(self, position):
        for step, batch in enumerate(super().batches(position), position):
            if self.ctx.mode == "train":
                self.hang(("input",), step + 1)
            yield batch


def stuck(order):
    """One host hangs as `order` says; if it does not say how, all train to the end."""
    hang, save = Hang(order), ocp.CheckpointManager.save

    def saved(manager, step, **options):
        hang(("save",), step)
        return save(manager, step, **options)

    ocp.CheckpointManager.save = saved
    if jax.process_index() == 0 and hasattr(order, "late"):
        finalize = ocp.CheckpointManager._finalize
        ocp.CheckpointManager._finalize = lambda *args: [time.sleep(order.late), finalize(*args)]
    task = dense_task()
    if order.how == "device":
        task = replace(task, loss_fn=with_call(task.loss_fn, lambda step: hang(("device",), step)))
    limits = LIMITS | getattr(order, "limits", {})
    config = settings(order, iterations_per_loop=order.k, checkpoint_every_steps=EVERY, log_every=10, **limits)
    trainer = Trainer(task, config, callbacks=[Hanging(hang)])

    def open_input(ctx):
        return HangingInput(ctx, hang)

    result = trainer.train_and_evaluate(open_input, open_input, max_steps=STEPS, eval_every_steps=EVERY)
    # Of the last checkpoint: a run that was stuck after it has nothing left to train, and no state.
    names = get_variable_names(config.workdir)
    read = {name: zlib.crc32(get_variable_value(config.workdir, name).tobytes()) for name in names}
    yield "trained", [result.step, read]


def with_call(loss_fn, call):
    """The loss, for which the first device of training calls a function of its host in every step."""
    made = [0]

    def called(loss):
        made[0] += 1
        call(made[0])
        return loss

    def calling(variables, batch, rng, train):
        loss, *others = loss_fn(variables, batch, rng, train)
        if train:
            fixed = jax.lax.stop_gradient(loss)
            loss = loss + 0 * jax.pure_callback(called, jax.ShapeDtypeStruct(loss.shape, loss.dtype), fixed)
        return loss, *others

    return calling


def unhurried(order):
    """Trains for `order.seconds` with random pauses below the limits, with compilations and a clock that jumps."""
    random = np.random.default_rng(jax.process_index())
    stop, real, jump = time.monotonic() + order.seconds, time.time, [0.0]
    time.time = lambda: real() + jump[0]

    def pause(most):
        if random.random() < 0.01:
            time.sleep(random.uniform(0, most))

    class Pausing(Callback):
        def on_loop_end(self, end):
            pause(0.6 * LIMITS["callback_seconds"])
            if random.random() < 0.01:
                jump[0] = random.uniform(-7200, 7200)
            if random.random() < 0.002:
                jax.jit(lambda x: x * random.random())(np.zeros(7)).block_until_ready()
            if time.monotonic() > stop:
                end.stop("it is time")

    class PausingInput(NumberedInput):
        def batches(self, position):
            for batch in super().batches(position):
                pause(0.6 * LIMITS["stall_seconds"])
                yield batch

    task = dense_task()
    # Once in a dispatch, and so that the pauses of both hosts, which wait for each other, are below the limit together.
    slow = with_call(task.loss_fn, lambda step: step % order.k or pause(0.45 * order.host_timeout_seconds))
    config = settings(order, iterations_per_loop=order.k, checkpoint_every_steps=500, **LIMITS)
    trainer = Trainer(replace(task, loss_fn=slow), config, callbacks=[Pausing()])
    evaluated = {"eval_every_steps": 500, "max_steps": 10**7}
    open_input = lambda ctx: PausingInput(ctx, RECORDS)  # noqa: E731
    yield "trained", trainer.train_and_evaluate(open_input, open_input, **evaluated).step


def interrupted_consumer(order):
    """Predicts; Ctrl-C comes while the program works with a prediction for longer than a stuck process may live."""
    task = replace(dense_task(), predict_fn=class_scores)
    trainer = Trainer(task, settings(order, **LIMITS))
    trainer.train(lambda ctx: NumberedInput(ctx, RECORDS), max_steps=2)
    predictions = trainer.predict(lambda ctx: NumberedInput(ctx, RECORDS))
    next(predictions)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(13)
    yield "used", True
    try:
        next(predictions)
    except KeyboardInterrupt:
        yield "told", True
