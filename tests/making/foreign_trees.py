"""Files, directories and links of a user's, in and around what infeed writes; for tests that none of them changes."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hypothesis import strategies as st

__all__ = ["Planted", "plant", "seen", "trees"]

Kind = Literal["file", "directory", "link to a file", "link to a directory", "dangling link"]
KINDS: Sequence[Kind] = (
    "file",
    "directory",
    "link to a file",
    "link to a directory",
    "dangling link",
)
IN_VICTIM = (
    *("a.jpg", "assets.extra/infeed.json", "features.json", "lock", "metrics.jsonl", "saved_model.pb", "state/d/part"),
    *("train-00000-of-00003", "train.npy", "train.plan.json.txt", "variables/variables.index"),
)  # fmt: skip


@dataclass(frozen=True)
class Planted:
    """Something that a user put at a path, given relative to the output."""

    name: str
    kind: Kind
    content: bytes


def trees(names: Sequence[str]) -> st.SearchStrategy[list[Planted]]:
    """Some of these names, and random ones, as files, directories with a file, and links that lead out."""
    word = st.text("abz079._-", min_size=1, max_size=8).filter(lambda name: name.strip("."))
    planted = st.builds(
        Planted,
        st.sampled_from(names) | word,
        st.sampled_from(KINDS),
        st.sampled_from([b"{}", b"a user's\n", b'{"step": 900}\n{"step": 90']),
    )
    return st.lists(planted, min_size=1, max_size=8, unique_by=lambda planted: planted.name)


def plant(output: Path, outside: Path, tree: Sequence[Planted]) -> list[Path]:
    """Makes the tree in `output`, and the directory that its links lead to. Leaves out what is in the way of the
    output's own files. Returns all paths that were made, and one to which links lead that must not come to be."""
    victim, made = outside / "victim", []
    for name in IN_VICTIM:
        (victim / name).parent.mkdir(parents=True, exist_ok=True)
        (victim / name).write_bytes(name.encode())
        made.append(victim / name)
    for planted in tree:
        path = output / planted.name
        parents = [
            parent for parent in path.parents if parent != output and output in parent.parents
        ]
        if os.path.lexists(path) or any(
            parent.is_symlink() or parent.is_file() for parent in parents
        ):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if planted.kind == "file":
            path.write_bytes(planted.content)
        elif planted.kind == "directory":
            path.mkdir()
            (path / "user.txt").write_bytes(planted.content)
            made.append(path / "user.txt")
        else:
            targets = {
                "link to a file": victim / "a.jpg",
                "link to a directory": victim,
                "dangling link": outside / "no",
            }
            path.symlink_to(targets[planted.kind])
        made.append(path)
    return [*made, outside / "no"]


def seen(paths: Sequence[Path]) -> Mapping[str, str | bytes | None]:
    """What each path is: the target of a link, the bytes of a file, "" for a directory, None for nothing."""
    return {str(path): _seen(path) for path in paths}


def _seen(path: Path) -> str | bytes | None:
    if path.is_symlink():
        return str(path.readlink())
    if path.is_dir():
        return ""
    return path.read_bytes() if path.exists() else None
