"""The command `infeed`: lists the other commands, runs them by name, and is not misled by the user's own files."""

import ast
import functools
import os
import pkgutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import cast

import pytest
from infeed_door import SCRIPT, run_infeed

import infeed as front_door
from converters import idx_to_gcs
from pipeline.console import commands
from pipeline.console.commands import COMMANDS
from pipeline.errors import OptionError

ROOT = Path(__file__).parents[1]
MODULES = [command.module for group in COMMANDS.values() for command in group]
# runpy warns of modules that tests of this process have imported before.
pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules")


@pytest.fixture
def infeed(monkeypatch, capsys):
    """infeed("verify", "DIR"): (exit code, stdout, stderr) of the command in this process."""
    return functools.partial(run_infeed, monkeypatch, capsys)


def test_errors_name_a_command_as_the_user_started_it(infeed):
    status, _, failed = infeed("verify")
    assert status == 2
    assert failed == "error: the following arguments are required: DIR. See infeed verify --help.\n"
    with pytest.raises(OptionError, match=r"See python -m converters\.idx_to_gcs --help\."):
        idx_to_gcs.main(["--output=x"])


def test_a_remedy_names_a_command_as_the_user_started_this_one(
    infeed, tmp_path, monkeypatch, capsys
):
    status, _, failed = infeed("verify", str(tmp_path / "nowhere"))
    assert (status, failed.endswith("Give the output of a conversion or of infeed index.\n")) == (
        2,
        True,
    )
    monkeypatch.setattr(commands, "_by_infeed", True)
    text = "Run python -m trainer images. Or python -m converters.table_to_gcs; not python -m http.server"
    assert (
        commands.as_started(text)
        == "Run infeed train images. Or infeed convert table; not python -m http.server"
    )


STARTED_BY_US = ("guard.py", "service.py", "verification.py")


def test_every_command_is_listed_and_every_module_that_is_listed_is_there():
    ours = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
        for package in ("pipeline", "trainer", "converters")
        for path in (ROOT / package).rglob("*.py")
        if '\nif __name__ == "__main__":\n' in path.read_text() and path.name not in STARTED_BY_US
    }
    assert {*MODULES} == ours


def test_the_version_is_that_of_the_package(infeed):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"infeed": "pipeline.commands.infeed:main"}
    assert infeed("--version")[:2] == (0, f"infeed {version('infeed')}\n")


def test_the_users_own_files_replace_none_of_our_modules(tmp_path):
    for name in ("pipeline", "trainer", "converters", "beam_jobs"):
        (tmp_path / f"{name}.py").write_text(
            "raise RuntimeError('a file of the user was imported')"
        )
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin/infeed"
    script.write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}

    def run(*command):
        options = {"cwd": tmp_path, "env": env, "capture_output": True, "text": True}
        return subprocess.run([sys.executable, *command], timeout=60, check=False, **options)

    shown = run(str(script), "verify", "--help")
    assert (shown.returncode, shown.stdout[:20]) == (0, "usage: infeed verify"), shown.stderr
    assert (
        "a file of the user was imported" in run("-m", "pipeline.commands.verify", "--help").stderr
    )


def test_every_name_of_the_package_is_there_for_programs_and_for_type_checkers():
    (block,) = [
        node
        for node in ast.parse(Path(front_door.__file__).read_text()).body
        if isinstance(node, ast.If)
    ]
    for_checkers = {
        alias.asname: f"{each.module}.{alias.name}"
        for each in block.body
        for alias in cast(ast.ImportFrom, each).names
    }
    assert for_checkers.keys() == {*dir(front_door)}
    for name, path in for_checkers.items():
        assert getattr(front_door, name) is pkgutil.resolve_name(path)
    assert not hasattr(front_door, "train_datset")


def test_importing_the_package_loads_nothing_heavy():
    program = (
        "import infeed, sys; sys.exit(str({'jax', 'numpy', 'tensorflow', 'rich'} & {*sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, cwd=ROOT, capture_output=True, text=True
    )
    assert done.stderr == "set()\n"


@pytest.mark.parametrize(
    ("name", "used"),
    [("trainer.py", "Trainer"), ("pipeline/__init__.py", "train_dataset"), ("trainer.py", "")],
)
def test_a_file_of_the_users_in_front_of_a_package_is_named_where_that_is_needed(
    tmp_path, name, used
):
    """Many programs have a trainer.py, which is in nobody's way who only reads."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("raise RuntimeError('it was imported')")
    program = f"import infeed; infeed.{used or 'eval_dataset; infeed.Epoch'}"
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    package = path.relative_to(tmp_path).parts[0].removesuffix(".py")
    named = f"`import {package}` finds {path}. Rename" in done.stderr
    assert (bool(done.returncode), named) == (bool(used), bool(used)), done.stderr
