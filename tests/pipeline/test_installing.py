"""The commands that install what is missing: from a checkout, and from a wheel that no index has."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import packages as installing
from pipeline.packages import how_to_install, packages_of

METADATA = """Metadata-Version: 2.4
Name: infeed
Version: 9
Requires-Dist: numpy>=2.0
Provides-Extra: read
Requires-Dist: tensorflow<3,>=2.99; extra == 'read'
"""


def test_a_checkout_is_installed_with_its_extras(monkeypatch, tmp_path):
    root = Path(installing.__file__).parents[1]
    monkeypatch.setenv("PWD", str(root))
    assert how_to_install("read") == "pip install -e '.[read]'"
    monkeypatch.setenv("PWD", str(tmp_path))
    assert how_to_install("train", "tf") == f"pip install -e '{root}[train,tf]'"


@pytest.mark.parametrize(
    ("metadata", "pyproject", "command"),
    [
        (METADATA, None, "pip install 'tensorflow<3,>=2.99'"),
        (METADATA, "[tool.theirs]", "pip install 'tensorflow<3,>=2.99'"),
        (METADATA, "no TOML", "pip install 'tensorflow<3,>=2.99'"),
        (METADATA.partition("Provides")[0], None, "pip install 'infeed[read]'"),
        (None, None, "pip install 'infeed[read]'"),
    ],
    ids=[
        "a wheel",
        "with a file of others",
        "with a damaged file",
        "without extras",
        "without metadata",
    ],
)
def test_a_wheel_names_what_its_metadata_require(tmp_path, metadata, pyproject, command):
    """In a process of its own without site-packages, whose packages lie where pip would put them."""
    shutil.copytree(
        Path(installing.__file__).parent,
        tmp_path / "pipeline",
        ignore=shutil.ignore_patterns("*.pyc"),
    )
    if metadata:
        (tmp_path / "infeed-9.dist-info").mkdir()
        (tmp_path / "infeed-9.dist-info" / "METADATA").write_text(metadata)
    if pyproject:
        (tmp_path / "pyproject.toml").write_text(pyproject)
    program = "from pipeline.packages import how_to_install; print(how_to_install('read'))"
    run = [sys.executable, "-S", "-c", program]
    done = subprocess.run(
        run, check=False, capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.stdout == f"{command}\n", done.stderr


@pytest.mark.parametrize(
    ("names", "packages"),
    [
        (["a"], ["one>=1"]),
        (["b"], ["one>=1", "two[x]", "three"]),
        (["a", "b"], ["one>=1", "two[x]", "three"]),
    ],
)
def test_extras_that_include_others_name_each_package_once(names, packages):
    extras = {"a": ["one>=1"], "b": ["infeed[a,c]", "three"], "c": ["infeed[a]", "two[x]"]}
    assert packages_of(names, extras) == packages
