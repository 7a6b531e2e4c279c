"""The docstrings of a dataclass's fields: the help of its flags, and of the class itself."""

import ast
import contextlib
import inspect
import itertools
import textwrap
from typing import Any, TypeVar

T = TypeVar("T")


def field_texts(kind: type) -> dict[str, str]:
    """The docstrings of the fields of a dataclass by name, each on one line; none without its
    source."""
    texts = dict[str, str]()
    for owner in reversed(kind.__mro__[:-1]):
        with contextlib.suppress(OSError, TypeError):
            tree: Any = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
            for pair in itertools.pairwise(tree.body):
                match pair:
                    case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                        texts[name] = " ".join(text.split())
    return texts


class _WithFields:
    """The docstring of a dataclass, made when it is asked for: its own, then those of its
    fields."""

    def __init__(self, own: str | None) -> None:
        self._own = own or ""

    def __get__(self, _: object, kind: type) -> str:
        # a section, which the descriptions in --help leave out
        lines = [inspect.cleandoc(self._own), "", "Attributes:"]
        for name, text in field_texts(kind).items():
            lines.append(
                textwrap.fill(
                    f"{name}: {text}", 96, initial_indent=" " * 4, subsequent_indent=" " * 8
                )
            )
        return "\n".join(lines)


def shows_fields(kind: type[T]) -> type[T]:
    """Adds the docstrings of its fields to that of a dataclass, so that help() shows them."""
    kind.__doc__ = _WithFields(kind.__doc__)  # pyright: ignore[reportAttributeAccessIssue]
    return kind
