"""What a program needs of infeed, in one place: infeed.train_dataset, infeed.Trainer,
infeed.metrics.Accuracy, ...

A name is imported when it is first used, so that `import infeed` loads neither NumPy nor JAX nor
TensorFlow."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infeed import metrics as metrics
    from pipeline import errors as errors
    from pipeline import ops as ops
    from pipeline import tf_data as tf_data
    from pipeline.datasets import eval_dataset as eval_dataset
    from pipeline.datasets import mixture as mixture
    from pipeline.datasets import open_dataset as open_dataset
    from pipeline.datasets import train_dataset as train_dataset
    from pipeline.epoch import Epoch as Epoch
    from pipeline.hosts import Hosts as Hosts
    from trainer import augment as augment
    from trainer import callbacks as callbacks
    from trainer.callbacks import Exporter as Exporter
    from trainer.checkpointing.warm_start import WarmStart as WarmStart
    from trainer.commands.recorded import load as load
    from trainer.config import TrainerConfig as TrainerConfig
    from trainer.nnx_task import nnx_task as nnx_task
    from trainer.recipe import DataRecipe as DataRecipe
    from trainer.recipe import Recipe as Recipe
    from trainer.task import Target as Target
    from trainer.task import Task as Task
    from trainer.task import Variables as Variables
    from trainer.trainer import Trainer as Trainer

_MODULES = {
    "metrics": "infeed.metrics",
    "errors": "pipeline.errors",
    "ops": "pipeline.ops",
    "tf_data": "pipeline.tf_data",
    "eval_dataset": "pipeline.datasets",
    "mixture": "pipeline.datasets",
    "open_dataset": "pipeline.datasets",
    "train_dataset": "pipeline.datasets",
    "Epoch": "pipeline.epoch",
    "Hosts": "pipeline.hosts",
    "augment": "trainer.augment",
    "callbacks": "trainer.callbacks",
    "TrainerConfig": "trainer.config",
    "nnx_task": "trainer.nnx_task",
    "DataRecipe": "trainer.recipe",
    "Recipe": "trainer.recipe",
    "Target": "trainer.task",
    "Task": "trainer.task",
    "Variables": "trainer.task",
    "Trainer": "trainer.trainer",
    "load": "trainer.commands.recorded",
    "Exporter": "trainer.callbacks",
    "WarmStart": "trainer.checkpointing.warm_start",
}

__all__ = [*_MODULES]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'infeed' has no attribute {name!r}")
    module = _MODULES[name]
    for package in ("pipeline",) if module.startswith("pipeline") else ("pipeline", "trainer"):
        _check_package(package)
    found = import_module(module)
    globals()[name] = getattr(found, name, found)
    return globals()[name]


def __dir__() -> list[str]:
    return __all__


def _check_package(name: str) -> None:
    """Raises ImportError if another file or distribution shadows this package of ours."""
    spec = find_spec(name)
    ours = Path(__file__).parents[1] / name
    origin = spec.origin if spec else None
    if origin != str(ours / "__init__.py"):
        raise ImportError(
            f"infeed needs its package {name!r}, but `import {name}` finds {origin or 'none'}. "
            f"Rename that, or start the program in another directory. (infeed's is {ours}.)"
        )
