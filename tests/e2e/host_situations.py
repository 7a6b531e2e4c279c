"""A run in which something happens to one host, for test_supervision.py."""

import ctypes
import os
import signal
import time
import zlib
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
from host_task import NumberedInput, class_scores, dense_task, settings

from trainer.callbacks import Callback
from trainer.checkpointing.owner import Ownership
from trainer.checkpoints import get_variable_names, get_variable_value
from trainer.trainer import Trainer

STEPS, EVERY, RECORDS = 40, 10, 480
FOREVER = 10_000
# Those of TrainerConfig, divided by much.
LIMITS = {"work_seconds": 8.0, "stall_seconds": 8.0}


class Fault:
    """What happens on host `order.host` once the run does what `order.where` says at step `order.at`: `order.how`."""

    def __init__(self, order):
        self.order = order
        self.where = order.where if order.host == jax.process_index() else ""

    def __call__(self, where, step):
        """Whether the input is to have another shape from now on."""
        if self.where != where or step < self.order.at:
            return False
        self.where = ""
        Path(self.order.out, "happened").write_text(str(time.time()))
        how = self.order.how
        if how == "raises":
            raise OSError("the disk of this host is on fire")
        if how == "hangs":
            time.sleep(FOREVER)
        if how == "hangs in C":
            ctypes.CDLL(None).sleep(FOREVER)  # without the GIL
        if how == "pauses":
            time.sleep(self.order.seconds)
        for number in how.split() if how.startswith("SIG") else ():
            os.kill(os.getpid(), getattr(signal, number))
            time.sleep(1.5)  # a launcher may send the same signal again within a second
        return how == "reshapes"


class AtStep(Callback):
    def __init__(self, fault):
        self.fault = fault

    def on_loop_end(self, end):
        self.fault("callback", end.step)
        if jax.process_index() == 1:
            time.sleep(self.fault.order.slow)  # slow is not stuck

    def on_evaluation_end(self, end):
        self.fault("evaluation", end.result.step)


class FaultyInput(NumberedInput):
    def __init__(self, ctx, fault):
        super().__init__(ctx, RECORDS)
        self.fault = fault

    def batches(self, position):
        for step, batch in enumerate(super().batches(position), position):
            changed = self.ctx.mode == "train" and self.fault("input", step + 1)
            yield batch | {"image": batch["image"][:, :4]} if changed else batch


def situation(order):
    """A training with evaluations, and then an evaluation."""
    fault, task = Fault(order), dense_task()
    if order.where == "device":
        task = replace(task, loss_fn=with_call(task.loss_fn, lambda step: fault("device", step)))
    config = settings(
        order, iterations_per_loop=order.k, checkpoint_every_steps=EVERY, log_every=10
    )
    config = replace(config, **(LIMITS | getattr(order, "limits", {})))
    if fault.where == "checkpoint":
        lose_arrays(fault, Path(config.workdir))
    trainer = Trainer(task, config, callbacks=[AtStep(fault)])

    def open_input(ctx):
        return FaultyInput(ctx, fault)

    result = trainer.train_and_evaluate(
        open_input, open_input, max_steps=STEPS, eval_every_steps=EVERY
    )
    # Of the last checkpoint: a run that was stuck after it has nothing left to train, and no state.
    names = get_variable_names(config.workdir)
    read = {name: zlib.crc32(get_variable_value(config.workdir, name).tobytes()) for name in names}
    fault("between", STEPS)
    yield "trained", [result.step, read]
    trainer.evaluate(open_input)
    yield "evaluated", True


def lose_arrays(fault, workdir):
    """Removes the arrays of each checkpoint just before it gets its name, as a disk may."""
    fence = Ownership.fence

    def losing(ownership):
        fence(ownership)
        for file in workdir.glob("checkpoints/*/state/d/*"):
            file.unlink()
            fault("checkpoint", STEPS)

    Ownership.fence = losing


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
            loss = loss + 0 * jax.pure_callback(
                called, jax.ShapeDtypeStruct(loss.shape, loss.dtype), fixed
            )
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
            pause(0.6 * order.limits["work_seconds"])
            if random.random() < 0.01:
                jump[0] = random.uniform(-7200, 7200)
            if random.random() < 0.002:
                jax.jit(lambda x: x * random.random())(np.zeros(7)).block_until_ready()
            if time.monotonic() > stop:
                end.stop("it is time")

    class PausingInput(NumberedInput):
        def batches(self, position):
            for batch in super().batches(position):
                pause(0.6 * order.limits["stall_seconds"])
                yield batch

    task = dense_task()
    # Once in a dispatch.
    slow = with_call(
        task.loss_fn, lambda step: step % order.k or pause(0.6 * order.host_timeout_seconds)
    )
    config = settings(
        order, iterations_per_loop=order.k, checkpoint_every_steps=500, **order.limits
    )
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
