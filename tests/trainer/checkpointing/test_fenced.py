"""A checkpoint of a run that lost its work directory while it was written never appears."""

import jax.numpy as jnp
import pytest

from pipeline.errors import OwnerError
from trainer.checkpointing.manager import CheckpointManager, Saved
from trainer.checkpointing.orbax_paths import remove_unfinished
from trainer.config import TrainerConfig
from trainer.state import TrainState
from trainer.task import Variables


def saved(step):
    return Saved(step, TrainState(jnp.int32(step), Variables(jnp.ones(3)), (), jnp.zeros(2, jnp.uint32)), {}, {})


@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_a_checkpoint_does_not_appear_if_the_fence_raises_before_publishing(request, tmp_path, where):
    workdir = str(tmp_path) if where == "disk" else request.getfixturevalue("bucket")
    settings, asked = TrainerConfig(workdir=f"{workdir}/run", global_batch_size=1), []

    def fence():
        asked.append(where)
        if len(asked) > 1:
            raise OwnerError("taken over")

    with pytest.raises(OwnerError, match="taken over"), CheckpointManager(settings, fence) as checkpoints:
        checkpoints.save(saved(5))
    assert len(asked) == 2
    assert checkpoints.steps() == []
    remove_unfinished(settings.workdir)
    assert checkpoints.steps() == []


def test_a_save_that_fails_because_another_run_took_over_says_so(tmp_path):
    """The new owner removes the unfinished checkpoint of the old one, which then cannot rename it."""
    settings = TrainerConfig(workdir=str(tmp_path), global_batch_size=1)

    def fence():
        if taken_over:
            raise OwnerError("taken over")
        for unfinished in tmp_path.glob("checkpoints/5.*tmp*"):
            taken_over.append(unfinished.rename(tmp_path / "removed"))

    taken_over = []
    with pytest.raises(OwnerError, match="taken over"), CheckpointManager(settings, fence) as checkpoints:
        checkpoints.save(saved(5))
    assert len(taken_over) == 1
    assert checkpoints.steps() == []
