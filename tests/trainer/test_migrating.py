"""What TPUEstimator offered: tpu_estimator.json lists it, with where it is now; MIGRATING.md tells users the same.

Names and tests are looked up in the sources, so that nothing is imported for it: some need TensorFlow."""

import ast
import functools
import json
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
GUIDE = ROOT / "trainer" / "MIGRATING.md"
ROWS = [row for rows in json.loads(Path(__file__).with_name("tpu_estimator.json").read_text()).values() for row in rows]
FIELDS = {"provided": {"then", "kind", "here", "tests"}, "gone": {"then", "kind"}, "open": {"then", "kind"}}
HEADS = ("TPUEstimator", "---")
CHAPTERS = {"Supported": "provided", "Removed": "gone", "Planned": "open"}


def rows_of(kind):
    return [row for row in ROWS if row["kind"] == kind]


@functools.cache
def parsed(path):
    return ast.parse(path.read_text())


def is_there(name):
    """A module, "module:--flag", or what a module defines: a name, its field or method, "function(parameter)"."""
    name, _, flag = name.partition(":")
    name, _, parameter = name.rstrip(")").partition("(")
    parts = name.split(".")
    path = ROOT
    while parts and ((path / parts[0]).is_dir() or (path / f"{parts[0]}.py").is_file()):
        path /= parts.pop(0)
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    node = parsed(path)
    if flag:
        return any(isinstance(each, ast.Constant) and each.value == flag for each in ast.walk(node))
    for part in parts:
        node = defined(node).get(part)
    if parameter and isinstance(node, ast.ClassDef):
        node = defined(node)["__init__"]
    return node is not None and (not parameter or parameter in parameters(node))


def defined(node):
    found = {}
    for each in getattr(node, "body", ()):
        if isinstance(each, (ast.ClassDef, ast.FunctionDef)):
            found[each.name] = each
        elif isinstance(each, (ast.Assign, ast.AnnAssign)):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            found |= {target.id: each for target in targets if isinstance(target, ast.Name)}
        elif isinstance(each, ast.ImportFrom):
            found |= {alias.asname or alias.name: each for alias in each.names}
    return found


def parameters(function):
    return [each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def is_test(test):
    path, name = test.split("::")
    return name.startswith("test_") and isinstance(defined(parsed(TESTS / path)).get(name), ast.FunctionDef)


@functools.cache
def tables():
    """Of each chapter of MIGRATING.md: the names in the first cell of a line, and the other cells."""
    chapters = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", GUIDE.read_text(), re.M | re.S))
    lines = {kind: re.findall(r"^\| (.+) \|$", chapters[title], re.M) for title, kind in CHAPTERS.items()}
    return {kind: [cells(line) for line in lines[kind] if line.split(" | ")[0] not in HEADS] for kind in lines}


def cells(line):
    names, *others = line.split(" | ")
    return code(names), others


def code(markdown):
    return re.findall(r"`([^`]+)`", markdown)


def words(*names):
    return [word for name in names for word in re.findall(r"-*\w+", name)]


def test_every_row_has_the_fields_of_its_kind_and_a_unique_name():
    for row in ROWS:
        assert row.keys() == FIELDS[row["kind"]], row
    assert len({row["then"] for row in ROWS}) == len(ROWS)


def test_provided_rows_name_existing_infeed_names():
    assert all(row["here"] for row in rows_of("provided"))
    assert [name for row in rows_of("provided") for name in row["here"] if not is_there(name)] == []


def test_provided_rows_name_existing_tests():
    assert all(row["tests"] for row in rows_of("provided"))
    assert [test for row in rows_of("provided") for test in row["tests"] if not is_test(test)] == []


@pytest.mark.parametrize("kind", FIELDS)
def test_the_guide_has_each_row_once_in_its_chapter_and_no_other(kind):
    assert all(names for names, _ in tables()[kind])
    told = [name for names, _ in tables()[kind] for name in names]
    assert sorted(told) == sorted(row["then"] for row in rows_of(kind))


def test_only_features_added_after_2017_are_open():
    later = {"TPUEstimator(embedding_config_spec)", "TPUConfig(input_partition_dims)", "InputPipelineConfig.BROADCAST"}
    assert {row["then"] for row in rows_of("open")} <= later


def test_the_guide_states_the_infeed_name_of_each_provided_feature():
    told = {name: words(*code(" ".join(here))) for names, here in tables()["provided"] for name in names}
    untold = [
        (row["then"], name)
        for row in rows_of("provided")
        for name in row["here"]
        if words(name)[-1] not in told[row["then"]]
    ]
    assert untold == []


def test_the_guide_has_reasons_and_alternatives_for_removed_and_open_features():
    for kind, count in (("gone", 2), ("open", 1)):
        for names, others in tables()[kind]:
            assert len(others) == count, names
            assert all(cell.strip() for cell in others), names


def test_a_nonexistent_name_is_recognized():
    known = ["trainer.trainer.Trainer.train(steps)", "trainer.trainer.Trainer(callbacks)", "trainer.checkpoints:--tree"]
    assert all(map(is_there, [*known, "trainer.config.TrainerConfig.workdir", "converters.imagenet_to_gcs"]))
    for wrong in (
        "trainer.trainer.Trainer.train(epochs)",
        "trainer.trainer.Trainer(hooks)",
        "trainer.checkpoints:--bush",
    ):
        assert not is_there(wrong)
    for wrong in ("trainer.config.TrainerConfig.model_dir", "trainer.trainer.Estimator", "trainer.estimator"):
        assert not is_there(wrong)
