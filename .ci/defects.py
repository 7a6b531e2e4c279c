"""Plants defects in the code, one at a time, and tells which of them the tests find.

    python3 .ci/defects.py list                     # the defects, by number
    python3 .ci/defects.py map DIR                  # runs the complete suite once; DIR/N: tests that execute defect N
    python3 .ci/defects.py try DIR [N ...]          # plants each and runs the files with these tests, until one fails:
                                                    # first their tests of the quick suite, then the slow ones

A defect is a condition turned, a bound moved or a call left out. --seed and --count choose them,
equally many in each package; with --only FILE they come from a list that `list --json` has written
elsewhere. Run it in a clean checkout with an active environment: it changes files and restores
them."""

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGES = ("pipeline", "trainer", "converters", "beam_jobs")
TURNED = {
    "==": "!=",
    "!=": "==",
    "<": ">=",
    ">=": "<",
    ">": "<=",
    "<=": ">",
    "in": "not in",
    "not in": "in",
}
TURNED |= {"is": "is not", "is not": "is"}
MOVED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
NAMES = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
}
NAMES |= {ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not"}
PROBE = """import os
_last = {}
def hit(place):
    test = os.environ.get("PYTEST_CURRENT_TEST", "?")
    if _last.get(place) != test:
        _last[place] = test
        with open(place, "a") as file:
            file.write(test + "\\n")
    return True
"""
PYTEST = [
    sys.executable,
    "-m",
    "pytest",
    "-n",
    "3",
    "--dist",
    "loadfile",
    "-q",
    "-p",
    "no:cacheprovider",
]


class Defect(NamedTuple):
    """An expression in the source, and the text that replaces it."""

    file: str
    line: int
    kind: str
    before: str
    after: str

    def put(self, text: str) -> None:
        """Replaces the expression in the file by this text."""
        path = ROOT / self.file
        lines = path.read_text("utf-8").splitlines(keepends=True)
        start = len("".join(lines[: self.line - 1]))
        source = "".join(lines)
        at = source.index(self.before, start)
        path.write_text(source[:at] + text + source[at + len(self.before) :], "utf-8")


def defects_of(file: Path) -> Iterator[Defect]:
    """All that the file can have."""
    source, name = file.read_bytes(), file.relative_to(ROOT).as_posix()
    lines = source.splitlines()

    def text_of(node: ast.expr | ast.stmt) -> str:
        return lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()

    for each in ast.walk(ast.parse(source)):
        node = each
        if isinstance(each, ast.If | ast.While | ast.IfExp):
            node = each.test
            if node.lineno != node.end_lineno or isinstance(node, ast.Compare):
                continue
            test = text_of(node)
            yield Defect(name, node.lineno, "turned", test, f"(not ({test}))")
            continue
        if not isinstance(node, ast.Compare | ast.Expr) or node.lineno != node.end_lineno:
            continue
        text = text_of(node)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = (text_of(side) for side in (node.left, node.comparators[0]))
            sign = NAMES[type(node.ops[0])]
            yield Defect(name, node.lineno, "turned", text, f"(({left}) {TURNED[sign]} ({right}))")
            if sign in MOVED:
                yield Defect(
                    name, node.lineno, "moved", text, f"(({left}) {MOVED[sign]} ({right}))"
                )
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and not text.startswith(("log.", "say("))
        ):
            yield Defect(name, node.lineno, "left out", text, "None")


def chosen(seed: int, count: int) -> list[Defect]:
    """Equally many of each package and, within it, of each kind, as far as that is possible."""
    picked, rng = [], random.Random(seed)
    for package in PACKAGES:
        found = [
            each for file in sorted((ROOT / package).rglob("*.py")) for each in defects_of(file)
        ]
        kinds = ("turned", "moved", "left out")
        for number in range(count // len(PACKAGES)):
            of_kind = [each for each in found if each.kind == kinds[number % len(kinds)]]
            picked.append(rng.choice(of_kind))
    return picked


@contextmanager
def planted(defect: Defect, text: str) -> Iterator[None]:
    """Until the end, the file has this text in place of the expression."""
    path = ROOT / defect.file
    source = path.read_bytes()
    try:
        defect.put(text)
        yield
    finally:
        path.write_bytes(source)


def map_tests(defects: list[Defect], directory: Path) -> None:
    """Runs everything once, with a probe at every defect."""
    directory.mkdir(parents=True, exist_ok=True)
    probe = Path(sysconfig.get_paths()["purelib"], "_defect_probe.py")
    probe.write_text(PROBE)
    sources = {defect.file: (ROOT / defect.file).read_bytes() for defect in defects}
    try:
        for number, defect in sorted(
            enumerate(defects), key=lambda item: (item[1].file, -item[1].line)
        ):
            hit = f"__import__('_defect_probe').hit({str(directory / str(number))!r})"
            defect.put(f"({hit} and ({defect.before}))")
        subprocess.run([*PYTEST, "-m", ""], cwd=ROOT, env=environment(), check=False)
    finally:
        probe.unlink()
        for file, source in sources.items():
            (ROOT / file).write_bytes(source)


def environment() -> dict[str, str]:
    """That of the tests, which import this checkout."""
    return os.environ | {"PYTHONPATH": str(ROOT)}


def try_out(number: int, defect: Defect, directory: Path) -> str:
    """Which suite finds it, by which test: the quick one, or only the complete one."""
    hits = directory / str(number)
    tests = (
        {line.split("::")[0] for line in hits.read_text().splitlines() if "::" in line}
        if hits.exists()
        else set()
    )
    nearest = Path("tests", defect.file).parent
    files = sorted(
        (file for file in tests if (ROOT / file).exists()),
        key=lambda file: Path(file).parent != nearest,
    )
    if not files:
        return "not executed"
    if defect.before not in (ROOT / defect.file).read_text("utf-8"):
        return "not in this checkout"
    with planted(defect, defect.after):
        for suite, mark in (("quick", "not slow"), ("complete", "slow")):
            command = [*PYTEST, "-x", "--no-header", "-m", mark, *files]
            done = subprocess.run(
                command, cwd=ROOT, env=environment(), check=False, capture_output=True, text=True
            )
            if done.returncode not in (0, 5):  # 5: none was selected
                failed = [
                    line
                    for line in done.stdout.splitlines()
                    if line.startswith(("FAILED tests", "ERROR tests"))
                ]
                return (
                    f"found by the {suite} suite: "
                    f"{failed[0] if failed else f'exit code {done.returncode}'}"
                )
    return "lives"


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("list", "map", "try"))
    parser.add_argument("directory", nargs="?", type=Path)
    parser.add_argument("numbers", nargs="*", type=int)
    parser.add_argument("--seed", type=int, default=61)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", type=Path)
    args = parser.parse_args()
    defects = chosen(args.seed, args.count)
    if args.only:
        defects = [Defect(*each) for each in json.loads(args.only.read_text())]
    if args.what == "list":
        for number, defect in enumerate(defects):
            if not args.json:
                print(
                    f"{number:3} {defect.file}:{defect.line} {defect.kind}: {defect.before} -> "
                    f"{defect.after}"
                )
        if args.json:
            print(json.dumps(defects))
    elif args.what == "map":
        map_tests(defects, args.directory.resolve())
    else:
        for number in args.numbers or range(len(defects)):
            told = try_out(number, defects[number], args.directory.resolve())
            print(f"{number:3} {defects[number].file}:{defects[number].line} {told}", flush=True)


if __name__ == "__main__":
    main()
