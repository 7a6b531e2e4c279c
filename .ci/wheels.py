"""Fails unless three wheels hold the same code: python .ci/wheels.py FROM_CHECKOUT FROM_SDIST.

The third is the one that Dataflow's workers install, which beam_jobs builds by itself."""

import sys
import tempfile
import zipfile
from pathlib import Path

from beam_jobs.wheel import build_wheel


def contents(wheel: str | Path) -> dict[str, bytes]:
    """Name -> bytes. Without RECORD, which lists the others."""
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist() if not name.endswith(".dist-info/RECORD")}


def code(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files of the packages."""
    return {name: data for name, data in files.items() if ".dist-info/" not in name}


def compare(first: dict[str, bytes], second: dict[str, bytes], what: str) -> None:
    """Exits with the names of the files that differ."""
    differing = {name for name in first.keys() | second.keys() if first.get(name) != second.get(name)}
    if differing:
        sys.exit(f"{what} differ in {sorted(differing)}")


checkout, sdist = map(contents, sys.argv[1:])
compare(checkout, sdist, "the wheels from the checkout and from the sdist")
with tempfile.TemporaryDirectory() as directory:
    compare(code(checkout), code(contents(build_wheel(Path(directory)))), "the wheel and what workers install")

top = {name.split("/")[0] for name in code(checkout)}
assert top == {"pipeline", "trainer", "converters", "beam_jobs"}, top
assert {"converters/imagenet/synsets.txt", "pipeline/shards/FORMAT.md"} <= checkout.keys()
print("top-level names:", sorted(top))
