"""The wheel for the workers, of a checkout and of an installed distribution."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from beam_jobs.runners import wheel
from beam_jobs.runners.wheel import build_wheel
from pipeline.errors import InfeedError

ROOT = Path(__file__).parents[2]
PACKAGES = {"infeed", "pipeline", "trainer", "converters", "beam_jobs"}


def contents(path):
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None
        return {name: file.read(name) for name in file.namelist()}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def installed(built, tmp_path, monkeypatch):
    """A directory in which pip has installed the wheel, and the Distribution of it, which wheel.py then finds."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--compile"]
    subprocess.run([*pip, f"--target={tmp_path / 'site'}", str(built)], check=True, timeout=60)
    info = next((tmp_path / "site").glob("*.dist-info"))
    monkeypatch.setattr(wheel, "distribution", lambda _: Distribution.at(info))
    return tmp_path / "site"


def test_a_checkouts_wheel_holds_our_packages_and_no_caches(built):
    names = contents(built)
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == PACKAGES
    assert "converters/imagenet/synsets.txt" in names
    assert not [name for name in names if "__pycache__" in name or "/." in name]
    for name in PACKAGES:
        assert names[f"{name}/__init__.py"] == (ROOT / name / "__init__.py").read_bytes()


def test_the_wheel_metadata_match_pyproject(built):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    metadata = contents(built)[f"infeed-{project['version']}.dist-info/METADATA"].decode()
    required = re.findall("Requires-Dist: (.*)", metadata)
    assert [each for each in required if "; extra == " not in each] == project["dependencies"]
    assert f"Requires-Python: {project['requires-python']}" in metadata
    assert re.findall("Provides-Extra: (.*)", metadata) == list(project["optional-dependencies"])
    assert {"tokenizers>=0.21; extra == 'text'", "apache-beam>=2.77; extra == 'dask'"} <= set(
        required
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("tokenizers", "tokenizer.json needs the library tokenizers. Install it: pip install 'tokenizers>=0.21'."),
        ("apache_beam.options", r"conversion needs Apache Beam \(.*\). Install it: pip install 'apache-beam>=2.77'."),
    ],
)  # fmt: skip
def test_an_installed_wheel_names_a_missing_package_and_how_to_install_it(
    installed, tmp_path, missing, message
):
    """A process that imports infeed from the installed wheel, and cannot import the package."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "train.txt").write_text("a text")
    (tmp_path / "tokenizer.json").write_text("{}")
    command = "import runpy, sys; sys.modules[sys.argv.pop(1)] = None; runpy.run_module(sys.argv.pop(1), run_name='__main__')"
    flags = [
        "converters.text_to_gcs",
        "--raw-data-dir=raw",
        "--output=out",
        "--validation-fraction=0",
    ]
    if missing == "tokenizers":
        flags += ["--tokenizer=tokenizer.json"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", command, missing, *flags],
        check=False, capture_output=True, text=True, timeout=60, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
    )  # fmt: skip
    assert re.search(f"^error: {message}$", done.stderr, re.MULTILINE), done.stderr
    assert done.returncode == 2


def test_the_same_code_gives_the_same_bytes(built, tmp_path):
    assert build_wheel(tmp_path).read_bytes() == built.read_bytes()
    with zipfile.ZipFile(built) as file:
        assert {entry.date_time for entry in file.infolist()} == {(1980, 1, 1, 0, 0, 0)}


@pytest.mark.slow
def test_pip_installs_the_wheel_and_rebuilding_from_the_installation_is_identical(
    built, installed, tmp_path
):
    assert (installed / "beam_jobs/__pycache__").exists()
    again = build_wheel(tmp_path, root=installed)
    assert again.name == built.name
    assert contents(again) == contents(built)


@pytest.mark.slow
def test_a_wheel_rebuilt_from_an_installation_omits_the_files_that_pip_added(installed, tmp_path):
    info = next(installed.glob("*.dist-info"))
    (info / "direct_url.json").write_text('{"url": "file:///home/me/infeed"}')
    with (info / "RECORD").open("a") as record:
        record.write(f"{info.name}/direct_url.json,,\n../../bin/infeed,,\n")
    names = contents(build_wheel(tmp_path, root=installed))
    assert {Path(name).name for name in names if name.startswith(info.name)} == {
        "LICENSE", "METADATA", "RECORD", "WHEEL", "WORDNET_LICENSE",
    }  # fmt: skip
    assert not [name for name in names if name.startswith("..")]


def test_code_neither_checked_out_nor_installed_cannot_be_built_into_a_wheel(tmp_path, monkeypatch):
    monkeypatch.setattr(wheel, "_NAME", "infeed-that-nobody-installed")
    with pytest.raises(
        InfeedError, match=r"is neither a checkout of .* nor installed by pip.* pip install"
    ):
        build_wheel(tmp_path, root=tmp_path)
