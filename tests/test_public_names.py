"""The public modules, as tests/making/reference.py lists them: what they export exists, and is documented."""

import importlib
import sys

import pytest
import reference

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
