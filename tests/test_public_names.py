"""The public modules, as tests/making/reference.py lists them: what they export exists, and is documented."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import reference

PACKAGES = ("pipeline", "trainer", "converters", "beam_jobs")

MADE_UP = '''
"""A module. NAMED is a constant."""
from dataclasses import dataclass
__all__ = ["NAMED", "SAID", "UNSAID", "Bare", "Documented", "bare"]
NAMED = SAID = UNSAID = 1
SAID = 1
"""Has a string."""
def bare(): ...
class Bare: ...
@dataclass(frozen=True)
class Documented:
    """size: in bytes."""
    size: int
    other: int
    third: int
    """Has a string."""
    def method(self): ...
    def _private(self): ...
    @property
    def value(self): ...
class _Private: ...
'''


def test_a_module_lists_its_names_if_and_only_if_it_is_public():
    """Elsewhere a list would only repeat which names have no underscore."""
    root = Path(__file__).parents[1]
    paths = [path for package in PACKAGES for path in (root / package).rglob("*.py")]
    lists = {path for path in paths if re.search(r"^__all__ =", path.read_text(), re.M)}
    named = {".".join(path.relative_to(root).with_suffix("").parts) for path in lists}
    assert named - {"pipeline.tf_cpu", "pipeline.tf_quiet", "pipeline.records"} == {
        *reference.MODULES
    }  # records exports names of others


@pytest.mark.parametrize("name", reference.MODULES)
def test_everything_public_exists_and_is_documented(name):
    module = importlib.import_module(name)
    assert module.__all__
    assert [each for each in module.__all__ if each.startswith("_") or not hasattr(module, each)] == []
    assert reference.undocumented(module) == []


def test_undocumented_public_names_are_found(tmp_path, monkeypatch):
    (tmp_path / "made_up.py").write_text(MADE_UP)
    monkeypatch.syspath_prepend(tmp_path)
    found = reference.undocumented(importlib.import_module("made_up"))
    monkeypatch.delitem(sys.modules, "made_up")
    names = ["UNSAID", "Bare", "Documented.other", "Documented.method", "Documented.value", "bare"]
    assert found == [f"made_up.{name}" for name in names]
