"""The public modules, as tests/making/reference.py lists them: what they export exists, and is documented."""

import importlib
import re
from pathlib import Path

import pytest
import reference
import reference_page

PACKAGES = ("infeed", "pipeline", "trainer", "converters", "beam_jobs")


def test_a_module_lists_its_names_if_and_only_if_it_is_public():
    """Elsewhere a list would only repeat which names have no underscore."""
    root = Path(__file__).parents[1]
    paths = [path for package in PACKAGES for path in (root / package).rglob("*.py")]
    lists = {path for path in paths if re.search(r"^__all__ =", path.read_text(), re.M)}
    named = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for path in lists
    }
    assert named - {"pipeline.tf_cpu", "pipeline.tf_quiet"} == {*reference.MODULES}


@pytest.mark.parametrize("name", reference.MODULES)
def test_everything_public_exists_and_is_documented(name):
    module = importlib.import_module(name)
    assert module.__all__
    assert [
        each for each in module.__all__ if each.startswith("_") or not hasattr(module, each)
    ] == []
    assert reference.undocumented(module) == []


def test_the_reference_has_a_line_for_everything_that_infeed_gives():
    written = (Path(__file__).parents[1] / "docs/reference.md").read_text()
    remedy = "python tests/making/reference_page.py > docs/reference.md"
    assert written == reference_page.page(), f"made anew by: {remedy}"
