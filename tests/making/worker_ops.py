"""Ops that do to a worker process what can happen to it, when they meet the record with a number."""

import os
import signal
import sys
import time
from dataclasses import dataclass

import numpy as np

from pipeline.spec import ArraySpec


def exits():
    os._exit(7)


def dies():
    os.kill(os.getpid(), signal.SIGKILL)


def is_suspended():
    os.kill(os.getpid(), signal.SIGSTOP)


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
