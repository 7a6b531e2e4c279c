"""One short training for all tests that only evaluate or predict."""

import shutil

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
