"""What test_preemption_on_hosts.py has its processes do: a training with evaluations, and a signal amid it."""

import os
import signal
from dataclasses import replace

import jax
from host_task import NumberedInput, checksums, dense_task, settings

from trainer.callbacks import Callback
from trainer.trainer import Trainer

AT = 3  # the step that a signal comes after
STEPS, EVERY, RECORDS = 40, 20, 480


class AtStep(Callback):
    def __init__(self, number):
        self.number = number

    def on_loop_end(self, end):
        if self.number and end.step >= AT:
            os.kill(os.getpid(), self.number)
            self.number = 0  # a second SIGINT would not let it save


class Killing(NumberedInput):
    """Before its first batch, or its 16th, the process is asked to end."""

    where, number = "", signal.SIGTERM

    def batches(self, position):
        for number, batch in enumerate(super().batches(position)):
            if (self.where, number) in (("begin", 0), ("evaluate", 15)):
                os.kill(os.getpid(), self.number)
            yield batch


def numbered(ctx):
    return NumberedInput(ctx, RECORDS)


def preempted(order):
    """Trains and evaluates; host `order.host`, or all, gets a signal while it does what `order.where` says.

    One that was interrupted evaluates before it ends."""
    mine = order.host in (jax.process_index(), "all")

    def input_fn(ctx):
        source = Killing(ctx, RECORDS)
        doing = {"train": "begin", "eval": "evaluate"}[ctx.mode]
        source.number = order.number
        source.where = order.where if mine and doing == order.where else ""
        return source

    callbacks = [AtStep(order.number)] if mine and order.where == "train" else []
    config = settings(order, iterations_per_loop=order.k, checkpoint_every_steps=EVERY)
    trainer = Trainer(dense_task(), config, callbacks=callbacks)
    try:
        trainer.train_and_evaluate(input_fn, input_fn, max_steps=STEPS)
    except KeyboardInterrupt:
        # it makes up for none without a name
        yield ("evaluated", trainer.evaluate(numbered, name="afterwards").step)
        raise
    yield "trained", True


def goes_on(order):
    """Runs that go on, or begin, in the work directories of `order.runs`: {name: (k, workdir)}."""
    for name, (k, workdir) in order.runs.items():
        config = settings(order, iterations_per_loop=k, checkpoint_every_steps=EVERY)
        trainer = Trainer(dense_task(), replace(config, workdir=workdir))
        result = trainer.train_and_evaluate(numbered, numbered, max_steps=STEPS)
        report = {"start": result.start_step, "state": checksums(result.state)}
        report |= {"last": result.metrics, "executables": result.executables}
        report["evaluations"] = {each.step: each.metrics for each in result.evaluations}
        yield name, report
