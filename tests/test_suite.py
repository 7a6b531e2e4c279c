"""The two halves of the suite: README's command runs the quick one, CI the other one after it."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMAND = r"\.venv/bin/python (-m pytest -n 3 --dist loadfile.*)"


def test_readmes_command_and_the_one_after_it_run_every_test():
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"][
        "addopts"
    ]
    assert re.findall(r"-m '(.*?)'", options) == ["not slow"]
    quick = re.findall(COMMAND, (ROOT / "README.md").read_text())
    rest = re.findall(COMMAND, (ROOT / ".ci/run").read_text())
    assert rest == [f"{command} -m slow" for command in quick]
