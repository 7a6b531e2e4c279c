"""The command that installs missing packages. It works from a checkout and from a wheel, published or not.

pip finds 'infeed[read]' only in a package index, so the command lists the packages of the extra."""

import contextlib
import functools
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_OF_EXTRA = re.compile(r"""(?P<requirement>.*?)\s*;\s*extra\s*==\s*["'](?P<extra>[\w-]+)["']""")
_OURSELVES = re.compile(r"infeed\[(?P<extras>[\w,-]+)\]")


def how_to_install(*names: str) -> str:
    """The command for these extras, quoted for a shell: pip install 'tensorflow>=2.21' for `read`.

    Where nothing tells what they require, it names the extras: an error must not fail on its remedy."""
    extras = _extras()
    packages = packages_of(names, extras) if extras.keys() >= set(names) else [f"infeed[{','.join(names)}]"]
    return f"pip install {' '.join(map(shlex.quote, packages))}"


def packages_of(names: Sequence[str], extras: Mapping[str, Sequence[str]]) -> list[str]:
    """The requirements of these extras and of the extras that they include, each once."""
    found: dict[str, None] = {}
    for requirement in (requirement for name in names for requirement in extras[name]):
        ours = _OURSELVES.fullmatch(requirement)
        found |= dict.fromkeys(packages_of(ours["extras"].split(","), extras) if ours else [requirement])
    return list(found)


@functools.cache
def _extras() -> Mapping[str, Sequence[str]]:
    """From the checkout, which may be newer than its installation; for a wheel, from the installed metadata."""
    with contextlib.suppress(OSError, KeyError, ValueError):  # there is no such file, or it belongs to others
        project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
        if project["name"] == "infeed":
            return project["optional-dependencies"]
    found: dict[str, list[str]] = {}
    with contextlib.suppress(PackageNotFoundError):  # our packages were copied without their metadata
        for match in filter(None, map(_OF_EXTRA.fullmatch, requires("infeed") or ())):
            found.setdefault(match["extra"], []).append(match["requirement"])
    return found
