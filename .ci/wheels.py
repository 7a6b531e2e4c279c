"""Fails unless three wheels hold the same code: python .ci/wheels.py FROM_CHECKOUT FROM_SDIST
DIRECTORY.

The third is the one that Dataflow's workers install, which beam_jobs builds without a build
backend. It is written to the directory."""

import re
import sys
import zipfile
from pathlib import Path

from beam_jobs.runners.wheel import build_wheel


def contents(wheel: str | Path) -> dict[str, bytes]:
    """Name -> bytes. Without RECORD, which lists the others."""
    with zipfile.ZipFile(wheel) as file:
        return {
            name: file.read(name)
            for name in file.namelist()
            if not name.endswith(".dist-info/RECORD")
        }


def code(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files of the packages."""
    return {name: data for name, data in files.items() if ".dist-info/" not in name}


def requirements(files: dict[str, bytes]) -> dict[str, bytes]:
    """Extra -> the packages it requires; "" -> those that are always required."""
    metadata = next(
        data.decode() for name, data in files.items() if name.endswith(".dist-info/METADATA")
    )
    found = {
        extra: set[str]()
        for extra in ("", *re.findall("^Provides-Extra: (.*)", metadata, re.MULTILINE))
    }
    for name, extra in re.findall(
        r"^Requires-Dist: ([\w\[\]-]+).*?(?:; extra == '(.*)')?$", metadata, re.MULTILINE
    ):
        found[extra].add(name.replace("_", "-"))
    return {extra: " ".join(sorted(names)).encode() for extra, names in found.items()}


def compare(first: dict[str, bytes], second: dict[str, bytes], what: str) -> None:
    """Exits with the names of the files that differ."""
    differing = {
        name for name in first.keys() | second.keys() if first.get(name) != second.get(name)
    }
    if differing:
        sys.exit(f"{what} differ in {sorted(differing)}")


checkout, sdist = map(contents, sys.argv[1:3])
compare(checkout, sdist, "the wheels from the checkout and from the sdist")
staged = contents(build_wheel(Path(sys.argv[3])))
compare(code(checkout), code(staged), "the wheel and what workers install")
compare(
    requirements(checkout),
    requirements(staged),
    "the metadata of the wheel and of what workers install",
)

top = {name.split("/")[0] for name in code(checkout)}
assert top == {"infeed", "pipeline", "trainer", "converters", "beam_jobs"}, top
assert "converters/imagenet/synsets.txt" in checkout
print("top-level names:", sorted(top))
