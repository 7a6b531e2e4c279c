"""A checkpoint by its path: of another work directory than the run's own. Needs no jax."""

from typing import NamedTuple

from pipeline.errors import CheckpointError
from trainer.checkpointing.listing import checkpoints_directory, finished_steps, required_step

__all__ = ["Elsewhere", "find_elsewhere"]


class Elsewhere(NamedTuple):
    """A checkpoint of the training in `workdir`."""

    workdir: str
    step: int


def find_elsewhere(checkpoint_path: str, step: int | None = None) -> Elsewhere:
    """The newest checkpoint in a work directory, that of `step`, or the one at <workdir>/checkpoints/<step>.

    Raises CheckpointError if there is none."""
    path = str(checkpoint_path).rstrip("/")
    directory, _, name = path.rpartition("/")
    workdir = directory.rpartition("/")[0] or "."
    if name.isdecimal() and checkpoints_directory(workdir) in (directory, f"./{directory}"):
        if step not in (None, int(name)):
            raise CheckpointError(f"checkpoint_path={path!r} is not of step {step}. Give one of the two.")
        return Elsewhere(workdir, required_step(directory, finished_steps(workdir), int(name)))
    steps = finished_steps(path)
    if not steps:
        raise CheckpointError(
            f"checkpoint_path={path!r} has no checkpoint. Give the work directory of a training, or a checkpoint in "
            "it: <workdir>/checkpoints/<step>."
        )
    return Elsewhere(path, required_step(checkpoints_directory(path), steps, step))
