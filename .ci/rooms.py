"""Measures how the packages are arranged, and exits with 1 if a limit is exceeded: see LIMITS.

python3 .ci/rooms.py prints files, entries, floors, cycles and closures; --files also the tokens per
line of each file. --root DIR measures another checkout. Every import counts, wherever it stands,
but closures have only those that run when a module is imported. A floor holds what imports only
from the floors below it."""

import argparse
import ast
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from lines import PACKAGES, counts

LIMITS = {
    "entries of trainer": 22,
    "floors of trainer": 9,
    "modules that trainer.trainer imports": 96,
    "modules that pipeline.datasets imports": 70,
}
IN_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)

Graph = Mapping[str, set[str]]


def modules(root: Path) -> dict[str, ast.Module]:
    """The syntax trees of all files but __init__.py, by module."""
    found = {}
    for package in PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            if file.name != "__init__.py":
                name = ".".join(file.relative_to(root).with_suffix("").parts)
                found[name] = ast.parse(file.read_text("utf-8"))
    return found


def imported(node: ast.AST, known: Mapping[str, object], at_once: bool) -> Iterator[str]:
    """The modules that a tree imports. at_once: only those that run when it is imported."""
    for child in ast.iter_child_nodes(node):
        if at_once and (isinstance(child, IN_FUNCTIONS) or is_for_types(child)):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names if alias.name in known)
        elif isinstance(child, ast.ImportFrom):
            for alias in child.names:
                name = f"{child.module}.{alias.name}"
                yield from [each for each in (name, str(child.module)) if each in known][:1]
        yield from imported(child, known, at_once)


def is_for_types(node: ast.AST) -> bool:
    """Whether it is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def graph_of(trees: Mapping[str, ast.Module], at_once: bool = False) -> Graph:
    """Module -> the others that it imports."""
    return {name: set(imported(tree, trees, at_once)) - {name} for name, tree in trees.items()}


def entries(graph: Graph, package: str) -> Graph:
    """The modules and folders directly below a package, but __main__, and which of them each
    imports."""
    found: dict[str, set[str]] = {}
    for name, others in graph.items():
        entry = entry_of(name, package)
        if entry:
            below = {entry_of(other, package) for other in others}
            found.setdefault(entry, set()).update(below - {entry, ""})
    return found


def entry_of(module: str, package: str) -> str:
    """The part of a module's name that is directly below the package; "" if there is none."""
    top, _, rest = module.partition(".")
    return rest.partition(".")[0].replace("__main__", "") if top == package else ""


def floors(graph: Graph) -> int:
    """How many there are. Raises CycleError."""
    height: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        height[name] = 1 + max((height[other] for other in graph.get(name, ())), default=0)
    return max(height.values())


def closure(graph: Graph, module: str) -> set[str]:
    """The module, and all that it imports."""
    found, new = set[str](), {module}
    while new:
        found |= new
        new = set[str]().union(*(graph[name] for name in new)) - found
    return found


def main() -> int:
    """Prints the measures. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--files", action="store_true")
    args = parser.parse_args()
    trees = modules(args.root)
    graph, at_once = graph_of(trees), graph_of(trees, at_once=True)
    measured = {"files": len(trees)}
    for package in PACKAGES[1:]:
        try:
            rooms = entries(graph, package)
            measured |= {f"entries of {package}": len(rooms), f"floors of {package}": floors(rooms)}
        except CycleError as error:
            measured[f"floors of {package}"] = 10**6
            print(f"{package}: {' -> '.join(error.args[1])}")
    for module in ("trainer.trainer", "pipeline.datasets"):
        measured[f"modules that {module} imports"] = len(closure(at_once, module))
    status = 0
    try:
        floors(graph)
    except CycleError as error:
        print(f"modules that import each other: {' -> '.join(error.args[1])}")
        status = 1
    for name, value in measured.items():
        limit = LIMITS.get(name, value)
        print(f"{value:>6} {name}{f', at most {limit}' if name in LIMITS else ''}")
        status |= value > limit
    for name in trees if args.files else ():
        tokens, lines = counts((args.root / f"{name.replace('.', '/')}.py").read_text("utf-8"))
        print(f"{tokens / max(lines, 1):6.1f} tokens per line of {lines:>4} {name}")
    return status


if __name__ == "__main__":
    sys.exit(main())
