"""Without the package: one line with the command that installs it. trainer/CALLBACKS.md runs the callback with it."""

import sys

import pytest

from pipeline.errors import OptionError
from trainer.wandb import WandbCallback


def test_without_the_package_the_error_names_the_command_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(OptionError, match=r"WandbCallback needs the package wandb: pip install -e '"):
        WandbCallback(str(tmp_path))
