"""Which packages are installed, and the command that installs what is missing.

The command works from a checkout and from a wheel, published or not: pip finds 'infeed[read]' only
in a package index, so for a wheel the command lists the packages of the extra. Stdlib only."""

import os
import shlex
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_OURSELVES = "infeed["


def version_of(package: str) -> str:
    """The version of an installed package; "" if it is not installed, as where we run from a
    checkout."""

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def how_to_install(*names: str) -> str:
    """The command for these extras, quoted for a shell: pip install -e '.[tf]' in a checkout.

    Elsewhere it lists what they require, as no package index has infeed. Without metadata it names
    the extras: an error must not fail on its remedy."""
    if _is_checkout():
        # Path.cwd() fails where it was removed
        here = "." if os.environ.get("PWD") == str(_ROOT) else _ROOT
        return f"pip install -e '{here}[{','.join(names)}]'"
    try:
        packages = packages_of(names, _extras())
    except (PackageNotFoundError, KeyError):  # our packages were copied without their metadata
        packages = [f"infeed[{','.join(names)}]"]
    return f"pip install {' '.join(map(shlex.quote, packages))}"


def packages_of(names: Sequence[str], extras: Mapping[str, Sequence[str]]) -> list[str]:
    """The requirements of these extras and of the extras that they include, each once. KeyError for
    an extra that is not known."""
    packages = dict[str, None]()
    for requirement in (requirement for name in names for requirement in extras[name]):
        included = [requirement]
        if requirement.startswith(_OURSELVES):
            inner = requirement.removeprefix(_OURSELVES).rstrip("]").split(",")
            included = packages_of(inner, extras)
        packages |= dict.fromkeys(included)
    return list(packages)


def _is_checkout() -> bool:
    file = _ROOT / "pyproject.toml"  # may be that of another project
    return file.is_file() and b'name = "infeed"' in file.read_bytes()


def _extras() -> Mapping[str, Sequence[str]]:
    """What each extra requires, by the metadata of an installed wheel."""
    extras = dict[str, list[str]]()
    for line in requires("infeed") or ():
        requirement, _, extra = line.partition("; extra == ")
        extras.setdefault(extra.strip("'\""), []).append(requirement)
    return extras
