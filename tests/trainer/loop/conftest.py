"""One short training for all tests that only evaluate or predict."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from trainer.config import TrainerConfig
from trainer.trainer import Trainer


@pytest.fixture(scope="session")
def trained_workdir(dense_task, vector_input, tmp_path_factory):
    """A work directory with the checkpoint of step 2 of the dense task. Do not change it: copy."""
    workdir = str(tmp_path_factory.mktemp("trained") / "run")
    Trainer(dense_task, TrainerConfig(workdir=workdir, global_batch_size=16)).train(
        vector_input, max_steps=2
    )
    return workdir


@pytest.fixture
def trainer(dense_task, trained_workdir, config):
    """Trained for two steps; evaluates 16 records a step, up to 3 steps a dispatch."""
    settings = config(iterations_per_loop=3)
    shutil.copytree(trained_workdir, settings.workdir)
    return Trainer(dense_task, settings)


@pytest.fixture
def altered(vectors, make_input):
    """altered(change, **info): an input_fn over the vectors. change(batch, number): what is delivered in its place."""

    def input_fn_of(change=lambda batch, number: batch, **info):
        def input_fn(ctx):
            source = make_input(vectors, ctx)
            batches, source.info = source.batches, replace(source.info, **info)
            source.batches = lambda position: (
                change(batch, number) for number, batch in enumerate(batches(position))
            )
            return source

        return input_fn

    return input_fn_of


@pytest.fixture
def without(altered):
    """without(*records, **info): an input_fn whose mask leaves these out."""

    def input_fn_of(*records, **info):
        return altered(
            lambda batch, _: batch | {"_mask": batch["_mask"] * ~np.isin(batch["_index"], records)},
            **info,
        )

    return input_fn_of


@pytest.fixture
def repeating(make_input, vectors):
    """An input_fn that delivers what a reader does that reads record 8 twice and skips 7."""

    def input_fn(ctx):
        source = make_input(vectors, ctx)
        source.crcs[7] = source.crcs[8]
        return source

    return input_fn
