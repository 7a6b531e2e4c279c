"""Counts the lines of code of the four packages: lines that are neither blank, comment nor docstring.

python3 .ci/lines.py prints the total and each package's share. Issues have budgets in this unit."""

import ast
import io
import tokenize
from pathlib import Path

PACKAGES = ("pipeline", "trainer", "converters", "beam_jobs")
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
HAVE_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def lines_of_code(source: str) -> int:
    """Lines that a token other than a comment or docstring touches; a text of several lines counts with all of them."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    touched = {line for token in tokens if token.type not in LAYOUT for line in range(token.start[0], token.end[0] + 1)}
    return len(touched - set(docstring_lines(ast.parse(source))))


def docstring_lines(tree: ast.Module):
    """The lines of the docstrings of the module, its classes and its functions."""
    for node in ast.walk(tree):
        if isinstance(node, HAVE_DOCSTRINGS) and ast.get_docstring(node, clean=False) is not None:
            yield from range(node.body[0].lineno, node.body[0].end_lineno + 1)


if __name__ == "__main__":
    root = Path(__file__).parents[1]
    counts = {
        package: sum(lines_of_code(file.read_text("utf-8")) for file in sorted((root / package).rglob("*.py")))
        for package in PACKAGES
    }
    shares = ", ".join(f"{package} {count:,}" for package, count in counts.items())
    print(f"lines of code: {sum(counts.values()):,} ({shares})")
