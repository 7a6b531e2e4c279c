"""Counts the code of the packages, without comments, docstrings and layout: tokens, and lines that
have any.

python3 .ci/lines.py prints the totals and each package's share, the size of the tests, and the
words of the guides. Budgets of code are in tokens, so dense lines gain nothing."""

import ast
import io
import tokenize
from pathlib import Path

PACKAGES = ("infeed", "pipeline", "trainer", "converters", "beam_jobs")
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
HAVE_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def counts(source: str) -> tuple[int, int]:
    """The tokens, and the lines that one of them touches; a text of several lines counts with all
    of them."""
    docstrings = set(docstring_lines(ast.parse(source)))
    found = tokenize.generate_tokens(io.StringIO(source).readline)
    tokens = [
        token for token in found if token.type not in LAYOUT and token.start[0] not in docstrings
    ]
    return len(tokens), len(
        {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    )


def docstring_lines(tree: ast.Module):
    """The lines of the docstrings of the module, its classes and its functions."""
    for node in ast.walk(tree):
        if isinstance(node, HAVE_DOCSTRINGS) and ast.get_docstring(node, clean=False) is not None:
            yield from range(node.body[0].lineno, node.body[0].end_lineno + 1)


def guides(root: Path) -> list[Path]:
    """The pages for users, without the one that is made of docstrings; those about the project are
    in the root."""
    return [*{*(root / "docs").glob("*.md")} - {root / "docs/reference.md"}]


if __name__ == "__main__":
    root, totals, shares = Path(__file__).parents[1], [0, 0, 0], []
    for package in PACKAGES:
        files = [counts(file.read_text("utf-8")) for file in sorted((root / package).rglob("*.py"))]
        tokens, lines = map(sum, zip(*files, strict=True))
        totals = [
            total + more for total, more in zip(totals, (tokens, lines, len(files)), strict=True)
        ]
        shares.append(f"{package} {tokens:,} in {lines:,}")
    print(
        f"code: {totals[0]:,} tokens in {totals[1]:,} lines of {totals[2]} files "
        f"({', '.join(shares)})"
    )
    tests = [file.read_text("utf-8").count("\n") for file in (root / "tests").rglob("*.py")]
    print(f"tests: {sum(tests):,} lines of {len(tests)} files")
    pages = [len(page.read_text("utf-8").split()) for page in guides(root)]
    print(f"guides: {sum(pages):,} words of {len(pages)} pages")
