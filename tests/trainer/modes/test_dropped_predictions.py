"""An iterator of predictions may be dropped anywhere: its threads end, and nothing waits."""

import dataclasses
import threading
import time

import pytest

from trainer.config import TrainerConfig
from trainer.trainer import Trainer


@pytest.fixture(scope="module")
def trainer(dense_task, trained_workdir):
    task = dataclasses.replace(dense_task, predict_fn=lambda variables, batch: {"x": batch["x"]})
    settings = {"global_batch_size": 16, "iterations_per_loop": 3, "loop_mode": "step"}  # one program to compile
    return Trainer(task, TrainerConfig(workdir=trained_workdir, **settings))


def threads():
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("trainer")}


@pytest.mark.parametrize("taken", [0, 48, 99])
def test_a_dropped_iterator_ends_its_threads_and_the_next_call_works(trainer, vector_input, taken):
    found = trainer.predict(vector_input)
    for _ in range(taken):
        next(found)
    found.close()
    assert not threads()
    assert next(trainer.predict(vector_input))["_index"] == 0


def test_an_iterator_that_is_forgotten_is_dropped(trainer, vector_input):
    for _ in trainer.predict(vector_input):
        break
    assert not threads()


def test_closing_predictions_does_not_wait_for_a_stalled_input(trainer, vectors, make_input):
    never = threading.Event()

    def stalling(ctx):
        source = make_input(vectors, ctx)
        batches = source.batches

        def stalled(position):
            for number, batch in enumerate(batches(position)):
                if number == 6:
                    never.wait(30)
                yield batch

        source.batches = stalled
        return source

    found = trainer.predict(stalling)
    assert next(found)["_index"] == 0
    begun = time.monotonic()
    found.close()
    assert time.monotonic() - begun < 10
    never.set()
