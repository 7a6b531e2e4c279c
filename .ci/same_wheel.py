"""Fails unless two wheels hold the same files with the same bytes: python .ci/same_wheel.py WHEEL WHEEL."""

import sys
import zipfile


def contents(wheel: str) -> dict[str, bytes]:
    """Name -> bytes. Without RECORD, which lists the others."""
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist() if not name.endswith(".dist-info/RECORD")}


first, second = map(contents, sys.argv[1:])
differing = {name for name in first.keys() | second.keys() if first.get(name) != second.get(name)}
assert not differing, f"{sys.argv[1:]} differ in {sorted(differing)}"
