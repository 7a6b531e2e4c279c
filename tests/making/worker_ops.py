"""Ops that do to a worker process what can happen to it, when they meet the record with a number."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np

from pipeline.inputs import worker_pool
from pipeline.spec import ArraySpec


def exits():
    os._exit(7)


def dies():
    os.kill(os.getpid(), signal.SIGKILL)


def dies_in_a_worker():
    if worker_pool.inside_worker:
        dies()


def is_suspended():
    os.kill(os.getpid(), signal.SIGSTOP)


def is_suspended_in_a_worker():
    if worker_pool.inside_worker:
        is_suspended()


def sleeps():
    time.sleep(1000)


def raises():
    raise ZeroDivisionError("of a user's own")


def runs_out_of_memory():
    raise MemoryError


def loads_jax():
    raise ValueError(sorted({"jax", "tensorflow", "flax"} & sys.modules.keys()))


def is_interrupted():
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)


def starts_a_process():
    started = subprocess.Popen(["sleep", "60"])
    started.terminate()
    assert started.wait(10) == -signal.SIGTERM


class Scratch:
    """An op that writes into an array of its own."""

    reads = ("number",)

    def __init__(self):
        self.array = np.zeros(2**18, np.int64)  # 2 MiB

    def output_spec(self, specs):
        return {"number": specs["number"]}

    def __call__(self, features, rng):
        self.array[0] = features["number"]
        return {"number": self.array[0]}


@dataclass(frozen=True)
class Fault:
    """Sets `pid`, and calls the function of this module with that name where number == at."""

    does: str
    at: int

    reads = ("number",)

    def output_spec(self, specs):
        return {"pid": ArraySpec((), np.dtype(np.int32))}

    def __call__(self, features, rng):
        if features["number"] == self.at:
            globals()[self.does]()
        return {"pid": os.getpid()}
