"""What works without TensorFlow, and what names the package to install."""

import subprocess
import sys
import textwrap

import pytest

from pipeline.errors import OptionError
from trainer.callbacks import WandbCallback
from trainer.checkpoints import export_weights

PROGRAM = """
    import sys

    sys.modules["tensorflow"] = None  # as if it were not installed, also for importlib.util.find_spec

    import importlib, pkgutil
    import trainer
    for module in pkgutil.walk_packages(trainer.__path__, "trainer."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:  # a SavedModel is TensorFlow's
            assert ".serving." in module.name or module.name == "trainer.loop.export", module.name
            assert "need TensorFlow, which is not installed" in str(error)

    import jax.numpy as jnp, numpy as np, optax
    from trainer.config import TrainerConfig
    from trainer.task import Task, Variables
    from trainer.trainer import Trainer

    def loss_fn(variables, batch, rng, train):
        return (batch["x"] @ variables.params - batch["y"]) ** 2, variables, None

    task = Task(lambda rng, spec: Variables(jnp.zeros(4)), loss_fn, optax.sgd(0.1))
    x = np.random.default_rng(0).standard_normal((8, 4))
    batch = {"x": x, "y": x @ np.arange(4.0)}
    trainer = Trainer(task, TrainerConfig(workdir=sys.argv[1], global_batch_size=8, iterations_per_loop=10))
    trainer.train(lambda ctx: [batch] * 200, steps=200)
    print("loss", trainer.evaluate(lambda ctx: [batch]).metrics["loss"])
    assert sys.modules["tensorflow"] is None
"""


@pytest.mark.slow
def test_importing_everything_but_exports_training_and_evaluating_need_no_tensorflow(tmp_path):
    program = [sys.executable, "-W", "error", "-c", textwrap.dedent(PROGRAM), str(tmp_path / "run")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) < 0.1


def test_without_the_package_the_error_names_the_command_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(
        OptionError, match=r"WandbCallback needs the package wandb: pip install -e '"
    ):
        WandbCallback(str(tmp_path))
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(OptionError, match=r"need the package safetensors: pip install -e '"):
        export_weights(str(tmp_path), str(tmp_path / "model.safetensors"))
