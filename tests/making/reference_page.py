"""docs/reference.md: a line for each name that `import infeed` gives, made from the docstrings.

python tests/making/reference_page.py > docs/reference.md"""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

import infeed
from pipeline.console.fields import field_texts

__all__ = ["page"]

BEGINNING = """# Reference

Every name of `import infeed`, with the first sentence of its docstring; `help(infeed.metrics.TopK)` shows the rest. The tests
compare this page with the code.
"""
SECTIONS = {
    "Data": ("open_dataset", "train_dataset", "eval_dataset", "mixture", "Hosts", "Epoch"),
    "Training": (
        "Trainer", "Task", "Variables", "Target", "nnx_task", "WarmStart", "load", "Exporter",
        "Recipe", "DataRecipe",
    ),
    "TrainerConfig": ("TrainerConfig",),
}  # fmt: skip
METHODS = ("Epoch", "Trainer")  # whose methods are listed
LONGEST_DEFAULT = 40


def page() -> str:
    """The page as Markdown."""
    modules = [name for name in infeed.__all__ if inspect.ismodule(getattr(infeed, name))]
    named = {name for names in SECTIONS.values() for name in names}
    assert named | {*modules} == {*infeed.__all__}, "SECTIONS has other names than infeed"
    parts = [BEGINNING]
    for title, names in SECTIONS.items():
        parts += [f"## {title}\n", *(_lines("", name, getattr(infeed, name)) for name in names)]
    for name in modules:
        module = getattr(infeed, name)
        members = ((each, getattr(module, each)) for each in module.__all__)
        lines = (_lines(f"{name}.", each, member) for each, member in members if _shown(member))
        parts += [f"## {name}\n", f"{_first_sentence(module)}\n", *lines]
    return "\n".join(parts).replace("\n## ", "\n\n## ").replace("\n\n\n", "\n\n") + "\n"


def _shown(member: Any) -> bool:
    """Whether it is a class or a function: the others are aliases of types."""
    return inspect.isclass(member) or inspect.isfunction(member)


def _lines(prefix: str, name: str, member: Any) -> str:
    if name == "TrainerConfig":
        return "\n".join(_fields(member))
    lines = [f"- **`{prefix}{name}{_parameters(member)}`** {_first_sentence(member)}"]
    if name in METHODS:
        lines += (
            f"- **`{name}.{each}{_parameters(method)}`** {_first_sentence(method)}"
            for each, method in vars(member).items()
            if inspect.isfunction(method) and not each.startswith("_")
        )
    return "\n".join(lines)


def _fields(kind: type) -> Iterator[str]:
    yield "| field | default | what it is |\n| --- | --- | --- |"
    for field in dataclasses.fields(kind):
        required = field.default is dataclasses.MISSING
        default = "required" if required else f"`{field.default!r}`"
        if field.default_factory is not dataclasses.MISSING:
            default = f"`{field.default_factory()!r}`"
        yield f"| `{field.name}` | {default} | {_escaped(field_texts(kind)[field.name])} |"


def _parameters(member: Any) -> str:
    """The names of the parameters with their defaults, without types."""
    if inspect.isclass(member) and (issubclass(member, Exception) or _is_abstract(member)):
        return ""
    shown, star = [], False
    for each in inspect.signature(member).parameters.values():
        if each.name.startswith("_"):  # infeed makes it
            return ""
        if each.name in ("self", "args", "kwargs"):
            continue
        if each.kind is each.KEYWORD_ONLY and not star:
            shown.append("*")
        star = star or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        default = "" if each.default is each.empty else f"={each.default!r}"
        default = "=..." if len(default) > LONGEST_DEFAULT or "<" in default else default
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        shown.append(f"{stars}{each.name}{default}")
    return f"({', '.join(shown)})"


def _is_abstract(kind: type) -> bool:
    """Whether it is subclassed, and not made with arguments."""
    return inspect.isabstract(kind) or getattr(kind, "_is_protocol", False)


def _first_sentence(member: Any) -> str:
    text = " ".join((inspect.getdoc(member) or "").partition("\n\n")[0].split())
    return _escaped(re.split(r"(?<=\.) (?=[A-Z`])", text)[0])


def _escaped(text: str) -> str:
    return re.sub(r"[|*<]", r"\\\g<0>", text)


if __name__ == "__main__":
    print(page(), end="")
