"""A callback for Weights & Biases. Needs the extra `wandb`; docs/callbacks.md shows its use, and how to write one."""

import secrets
from typing import Any

from pipeline.errors import OptionError, how_to_install
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import join
from trainer.callbacks import Callback, EvaluationEnd, LoopEnd
from trainer.workdir import eval_directory

__all__ = ["WandbCallback"]


class WandbCallback(Callback):
    """Logs to one W&B run per work directory what TensorBoard gets: every step's scalars, the speed, evaluations.

    <workdir>/wandb_id names the run, so that a restart continues it. options: for wandb.init, such as project="mine".
    Without a connection, set WANDB_MODE=offline. Raises OptionError if wandb is not installed."""

    def __init__(self, workdir: str, **options: Any) -> None:
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise OptionError(f"WandbCallback needs the package wandb: {how_to_install('wandb')}") from error
        self._wandb, self._workdir, self._options, self._run = wandb, str(workdir), options, None

    def on_loop_end(self, end: LoopEnd) -> None:
        """Logs the scalars of each step, and the speed if there is a new one."""
        if end.reports.writes:
            first = end.step + 1 - len(end.scalars["loss"])
            for row, step in enumerate(range(first, end.step + 1)):
                speed = end.speed.scalars() if end.speed and step == end.step else {}
                self._log(step, {f"train/{name}": float(values[row]) for name, values in end.scalars.items()} | speed)

    def on_evaluation_end(self, end: EvaluationEnd) -> None:
        """Logs the metrics of the evaluation."""
        if end.reports.writes:
            group = eval_directory(end.name)
            self._log(end.result.step, {f"{group}/{name}": value for name, value in end.result.metrics.items()})

    def _log(self, step: int, values: dict[str, float]) -> None:
        if self._run is None:
            storage, path = open_storage(self._workdir), join(self._workdir, "wandb_id")
            storage.create(path, secrets.token_hex(8).encode())  # unless it exists
            directory = None if is_remote(self._workdir) else self._workdir
            own = {"id": storage.read(path).decode(), "resume": "allow", "dir": directory}
            self._run = self._wandb.init(**own | self._options)
            self._run.define_metric("*", step_metric="step")  # W&B's own steps cannot go back after a kill
        self._run.log({"step": step, **values})
