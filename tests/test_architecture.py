"""ARCHITECTURE.md is the page to read first: what it names is there, and what is there is named."""

import ast
import re
from pathlib import Path

import pytest

from trainer import workdir

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
PACKAGES = ("pipeline", "trainer", "converters", "beam_jobs")


def test_every_file_and_package_that_the_page_names_exists():
    for named in re.findall(r"`([\w./{},<>*-]+)`", PAGE):
        if "/" not in named or "<" in named or "*" in named or named.startswith("converters/coco"):
            continue
        stem, braces, rest = named.partition("{")
        several = (
            [stem + one + rest.partition("}")[2] for one in rest.partition("}")[0].split(",")] if braces else [named]
        )
        for path in several:
            folders = (ROOT, *(ROOT / folder for folder in (*PACKAGES, "tests")))
            assert any((folder / path).exists() for folder in folders), path


@pytest.mark.parametrize("package", PACKAGES)
def test_architecture_lists_every_package(package):
    named = re.findall(r"^\| (`[^|]+`) \|", PAGE, re.M)
    lines = " ".join(named).replace("`", "")
    for folder in (path.parent for path in (ROOT / package).glob("*/__init__.py")):
        braces = re.search(rf"{package}/\{{[^}}]*\b{folder.name}\b[^}}]*\}}/", lines)
        assert braces or f"{package}/{folder.name}/" in lines, folder


def test_only_one_module_spells_the_names_of_files_in_a_work_directory():
    names = {value for name, value in vars(workdir).items() if name.isupper() and name[0] != "_"}
    words = {"train", "checkpoints", "state", "contents"}  # which mean other things, too
    spelled = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"
        for path in (ROOT / "trainer").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in names - words
    ]
    assert [place.partition(":")[0] for place in spelled] == ["trainer/workdir.py"] * len(names - words), spelled


def test_hosts_talk_through_the_exchange_only():
    outside = [path for path in (ROOT / "trainer").rglob("*.py") if path.parent.name != "cluster"]
    seen = [str(path) for path in outside if re.search(r"cluster\.store|open_store|\.registry\b", path.read_text())]
    assert seen == [], "use watchdog.exchange instead of the store behind it"


def test_every_link_leads_to_a_page():
    for page in re.findall(r"\]\(([^)]+)\)", PAGE):
        assert (ROOT / page).exists(), page


def test_readme_names_the_key_features_in_at_most_750_words():
    text = (ROOT / "README.md").read_text()
    for word in ("imagenet_to_gcs", "TPU", "tf.data", "padded", "_mask", "Task", "optax", "iterations_per_loop"):
        assert word in text.partition("## Try it")[0], word
    prose = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)
    assert len(prose.split()) <= 750
    assert len([path for path in ROOT.iterdir() if path.is_file() and path.name[0] != "."]) <= 9
