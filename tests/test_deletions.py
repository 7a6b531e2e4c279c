"""The table of all places that remove, replace or truncate something is complete, and its tests exist."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from deletion_places import PLACES, Proof

ROOT = Path(__file__).parents[1]
PACKAGES = ("infeed", "beam_jobs", "converters", "pipeline", "trainer")
# Methods and functions that remove or replace. Others of the same name are below, in OTHERS.
REMOVING = {
    "delete",
    "rename",
    "rmdir",
    "rmtree",
    "sweep",
    "truncate",
    "ftruncate",
    "unlink",
    "removedirs",
}
WRITING = {"publish", "write_bytes", "write_text"}
MODES = {"w", "wb", "wt", "w+", "w+b", "a", "ab", "r+", "r+b", "rb+"}
OTHERS = {
    "trainer/loop/export.py:make_export": "Exports.publish, which has a row",
    "converters/digits_raw.py:_tar": "a tar in memory",
    "pipeline/decoding/padding.py:pad_rows": "a field of an op",
    "trainer/serving/graph_decoding.py:_padded": "a field of an op",
    "pipeline/storage/gcs_upload.py:Upload._open": "an upload, which publish finishes",
}


def places_of(source: str) -> Iterator[str]:
    """The qualified name of the function of each place."""

    def visit(node: ast.AST, names: tuple[str, ...]) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            inner = names
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = (*names, child.name)
            elif removes(child):
                yield ".".join(names)
            yield from visit(child, inner)

    yield from visit(ast.parse(source), ())


def removes(node: ast.AST) -> bool:
    # also where the method is handed on: in_parallel(storage.delete, paths)
    if isinstance(node, ast.Attribute):
        of_os = isinstance(node.value, ast.Name) and node.value.id in ("os", "shutil")
        return node.attr in REMOVING | WRITING or (
            of_os and node.attr in ("remove", "replace", "move", "renames")
        )
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
    arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
    if name == "write_file":
        return True
    if name == "open":
        return any(isinstance(value, ast.Constant) and value.value in MODES for value in arguments)
    # str.replace has two arguments
    of_path = name == "replace" and len(node.args) == 1 and not node.keywords
    of_storage = name == "update" and len(node.args) == 2
    return (
        isinstance(node.func, ast.Attribute)
        and (of_path or of_storage)
        and not of_a_library(node.func.value)
    )


def of_a_library(value: ast.expr) -> bool:
    """jax.config.update, optimizer.update, and `replace` of an nnx variable."""
    return ast.unparse(value) in (
        "jax.config",
        "task.optimizer",
        "variable",
        "leaf",
        "self._progress",
    )


@pytest.fixture(scope="module")
def found() -> set[str]:
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    return {
        f"{file.relative_to(ROOT)}:{name}"
        for file in files
        for name in places_of(file.read_text("utf-8"))
    }


def test_every_place_that_removes_or_replaces_has_a_row(found):
    missing = sorted(found - PLACES.keys() - OTHERS.keys())
    assert not missing, (
        f"{missing}: how does it know that what it touches is ours? Add a row to deletion_places.py."
    )


def test_every_row_names_a_place_that_exists(found):
    assert sorted((PLACES.keys() | OTHERS.keys()) - found) == []


@pytest.mark.parametrize(
    "proof", list(dict.fromkeys(PLACES.values())), ids=lambda proof: proof.ours[:30]
)
def test_every_kind_of_proof_names_tests_that_exist(proof: Proof):
    for test in proof.shown_by:
        file, _, name = test.partition("::")
        assert (
            f"def {name}" in (ROOT / file).read_text("utf-8") if name else (ROOT / file).exists()
        ), test
