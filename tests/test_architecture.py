"""ARCHITECTURE.md is the page to read first: what it names is there, and what is there is named."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
PACKAGES = ("infeed", "pipeline", "trainer", "converters", "beam_jobs")


def test_every_file_and_package_that_the_page_names_exists():
    for named in re.findall(r"`([\w./{},<>*-]+)`", PAGE):
        if "/" not in named or "<" in named or "*" in named or named.startswith("converters/coco"):
            continue
        stem, braces, rest = named.partition("{")
        several = (
            [stem + one + rest.partition("}")[2] for one in rest.partition("}")[0].split(",")]
            if braces
            else [named]
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


def test_where_to_change_what_names_symbols_that_exist():
    _, _, table = PAGE.partition("## Where to change what")
    places = re.findall(r"`([\w/.]+):([\w.]+)`", table.partition("\n## ")[0])
    assert (
        len({line for line in table.partition("\n## ")[0].splitlines() if line.startswith("| ")})
        >= 12
    )
    for path, symbol in places:
        node = ast.parse((ROOT / path).read_text())
        for name in symbol.split("."):
            found = [each for each in node.body if getattr(each, "name", None) == name]
            assert found, f"{path} has no {symbol}"
            node = found[0]


def test_hosts_talk_through_the_exchange_only():
    outside = [path for path in (ROOT / "trainer").rglob("*.py") if path.parent.name != "hosts"]
    seen = [
        str(path) for path in outside if re.search(r"hosts\.store|open_store", path.read_text())
    ]
    assert seen == [], "use the exchange instead of the store behind it"


def test_every_link_of_a_page_leads_to_a_file():
    pages = [
        page
        for page in ROOT.rglob("*.md")
        if not any(part[0] == "." for part in page.relative_to(ROOT).parts)
    ]
    prose = {page: re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL) for page in pages}
    links = [
        (page, link)
        for page, text in prose.items()
        for link in re.findall(r"\]\(([\w./-]+)[)#]", text)
    ]
    assert [f"{page}: {link}" for page, link in links if not (page.parent / link).exists()] == []


def test_readme_names_the_key_features():
    text = (ROOT / "README.md").read_text()
    for word in (
        "imagenet_to_gcs",
        "TPU",
        "tf.data",
        "padded",
        "_mask",
        "Task",
        "optax",
        "iterations_per_loop",
    ):
        assert word in text.partition("## Your own data")[0], word
    assert len([path for path in ROOT.iterdir() if path.is_file() and path.name[0] != "."]) <= 9
