"""Finds the checkpoint at a path, its format, and which of its arrays each array of the model
begins with.

From the names of files, then as a pure function of names, shapes and patterns. Commands look for
the checkpoint before they import JAX."""

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

from pipeline.checks import check_patterns, did_you_mean, matches
from pipeline.errors import CheckpointError, OptionError, StorageError
from pipeline.shards.typed_json import FileName, Json, JsonFile
from pipeline.sizes import counted
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import Storage, join, read_file
from trainer.checkpointing.contents import contents_path
from trainer.checkpointing.listing import check_files, checkpoints_directory, finished_steps
from trainer.checkpointing.mappings import filled
from trainer.checkpointing.warm_start import WarmStart
from trainer.reports.workdir import ITEM_METADATA

ALLOWED = (
    "Give a work directory or a checkpoint in it, a checkpoint of Orbax, a .safetensors file or a "
    "directory of them, or a TensorFlow checkpoint without its .index. Pickles, such as .pt and "
    ".bin, are never read: save their arrays with safetensors."
)

INDEX = "model.safetensors.index.json"  # of transformers and timm
PART = re.compile(r"(.*)-(\d+)-of-(\d+)\.safetensors")

T = TypeVar("T")
Status = Literal["loaded", "missing", "unexpected", "mismatched", "excluded"]
MEANING: dict[Status, str] = {
    "missing": "not in the checkpoint",
    "unexpected": "not in the model",
    "mismatched": "of another shape or kind of number",
}
SHOWN, NAMED = 30, 3  # in the log, in an error


@dataclass(frozen=True)
class Found:
    """A checkpoint. files: those of safetensors; empty in other formats."""

    format: Literal["infeed", "orbax", "safetensors", "tensorflow"]
    path: str
    files: tuple[str, ...] = ()


def find_checkpoint(path: str) -> Found:
    """The checkpoint of init_from: the path itself, or the newest one in it. Raises OptionError if
    there is none."""
    storage = open_storage(path)
    path = path.rstrip("/")
    if step := _of_infeed(storage, path):
        return Found("infeed", step)
    if directory := _of_orbax(storage, path):
        check_files(storage, directory)
        return Found("orbax", directory)
    files, directories = _entries(storage, path)
    checkpoint = None
    parts = {join(path, name) for name in files if name.endswith(".safetensors")}
    if path.endswith(".safetensors") and not parts and storage.exists(path):
        parts = {path}
    if parts:
        checkpoint = Found("safetensors", path, _belonging(path, parts, INDEX in files))
    elif "checkpoint" in files or storage.exists(f"{path}.index"):
        checkpoint = Found("tensorflow", path)
    if checkpoint and is_remote(path):
        raise OptionError(
            f"init_from={path!r} is a checkpoint of {checkpoint.format}. Only those of infeed and "
            "Orbax are read from a bucket: copy it to a disk."
        )
    if checkpoint is None:
        problem = "is not a checkpoint" if storage.exists(path) else "does not exist"
        if names := sorted((*files, *directories)):
            problem = f"is none that infeed can read (it has: {', '.join(names[:8])})"
        raise OptionError(f"init_from={path!r} {problem}. {ALLOWED}")
    parent, _, name = path.rpartition("/")
    check_files(storage, *((path,) if files else (parent or ".", name)))
    return checkpoint


def _belonging(path: str, files: Collection[str], indexed: bool) -> tuple[str, ...]:
    """The files to read: those that the index lists, otherwise all. Raises OptionError if a listed
    file, or another part of one of the files, is missing."""
    listed = set[str]()
    if indexed:
        index = JsonFile(join(path, INDEX), CheckpointError, "Copy it again, or remove it.")
        page = index.read(read_file(open_storage(path), index.path) or "", Json)
        names = index.typed(page.get("weight_map"), Mapping[str, FileName])
        listed = {join(path, name) for name in names.values()}
    of_index = ((file, len(listed)) for file in sorted(listed))
    for file, count in itertools.chain(of_index, *map(_parts, files)):
        if file not in files:
            raise OptionError(
                f"init_from={path!r} has no {file.rpartition('/')[2]}, one of {count} parts. Give "
                "a directory that has all of them."
            )
    return tuple(sorted(listed if indexed else files))


def _parts(file: str) -> Iterator[tuple[str, int]]:
    """The names of all parts, and their number, if this is one of several. Lazy: the name may state
    any number."""
    if match := PART.fullmatch(file):
        name, number, count = match.groups()
        for part in range(1, int(count) + 1):
            yield f"{name}-{part:0{len(number)}}-of-{count}.safetensors", int(count)


def _entries(storage: Storage, path: str) -> tuple[list[str], list[str]]:
    try:
        files, directories = storage.entries(path)
    except StorageError:  # a file, or nothing
        return [], []
    return list(files), list(directories)


def _of_infeed(storage: Storage, path: str) -> str | None:
    """The directory of a step, if the path is a work directory of infeed or one of its
    checkpoints."""
    directory, _, name = path.rpartition("/")
    if name.isdecimal() and storage.exists(contents_path(directory or ".", int(name))):
        return path
    directory = checkpoints_directory(path)
    steps = finished_steps(path)
    if steps and storage.exists(contents_path(directory, steps[-1])):
        return join(directory, str(steps[-1]))
    return None


def _of_orbax(storage: Storage, path: str) -> str | None:
    """The directory of the arrays: this one, the only item in it, or that of the newest step in
    it."""
    files, directories = _entries(storage, path)
    if ITEM_METADATA in files:
        return path
    items = [name for name in directories if storage.exists(join(path, f"{name}/{ITEM_METADATA}"))]
    if len(items) > 1:
        raise OptionError(
            f"init_from={path!r} has several items: {', '.join(sorted(items))}. Give the path of "
            "one."
        )
    if items:
        return join(path, items[0])
    steps = sorted((name for name in directories if name.isdecimal()), key=int)
    return _of_orbax(storage, join(path, steps[-1])) if steps else None


class Array(NamedTuple):
    """An array's shape, and its dtype as text."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


class MatchedArray(NamedTuple):
    """An array of the model, the checkpoint or both.

    name: the model's.
    theirs: its name in the checkpoint."""

    name: str
    theirs: str | None
    status: Status
    note: str = ""

    def __str__(self) -> str:
        origin = (
            f" (in the checkpoint: {self.theirs})" if self.theirs not in (None, self.name) else ""
        )
        return f"{self.status}: {self.name}{origin}{': ' * bool(self.note)}{self.note}"


def match(
    model: Mapping[str, Array], saved: Mapping[str, Array], config: WarmStart
) -> list[MatchedArray]:
    """A row for each array of the model, then for each array that only the checkpoint has.

    Raises OptionError for a pattern without a match, and if two arrays of the checkpoint get the
    same name."""
    names_in_checkpoint = _renamed(saved, config)
    patterns = (*config.init_include, *config.init_exclude, *config.init_torch)
    check_patterns(
        patterns, {**model, **names_in_checkpoint}, "array of the model or the checkpoint"
    )
    rows = []
    for name in dict.fromkeys((*model, *names_in_checkpoint)):
        saved_name = names_in_checkpoint.get(name)
        status, note = _status(model.get(name), saved.get(saved_name or ""), name, config)
        rows.append(MatchedArray(name, saved_name, status, note))
    return rows


def from_torch(name: str, shape: tuple[int, ...], config: WarmStart) -> bool:
    """Whether this array of the checkpoint is in PyTorch's layout. name: the model's."""
    return len(shape) > 1 and matches(name, config.init_torch)


def check_rows(path: str, rows: Collection[MatchedArray], config: WarmStart, remedy: str) -> None:
    """Raises CheckpointError, which names arrays and the remedy, unless the rows are what `config`
    allows."""
    problems = []
    for status, meaning in MEANING.items():
        bad = [row for row in rows if row.status == status]
        allowed = (
            config.init_mismatch == "skip" if status == "mismatched" else not config.init_strict
        )
        if bad and not allowed:
            problems.append(f"{counted(len(bad), 'array')} {meaning} ({_named(bad)})")
    if problems:
        raise CheckpointError(
            f"{path} does not fit the model: {'; '.join(problems)}. {remedy}, or leave arrays out "
            "with init_exclude; init_strict=False allows missing and unexpected arrays."
        )
    if not any(row.status == "loaded" for row in rows):
        raise CheckpointError(f"{path} has no array for this model. {remedy}.")


def described_rows(rows: Collection[MatchedArray]) -> list[str]:
    """The number of arrays by status, then a line for each array that is not loaded, up to a
    limit."""
    counts = Counter(row.status for row in rows)
    lines = [str(row) for row in rows if row.status != "loaded"]
    if len(lines) > SHOWN:
        lines[SHOWN:] = [f"and {len(lines) - SHOWN} more"]
    return [", ".join(f"{count} {status}" for status, count in counts.items()), *lines]


def _status(
    array: Array | None, saved: Array | None, name: str, config: WarmStart
) -> tuple[Status, str]:
    if not matches(name, config.init_include) or matches(name, config.init_exclude):
        return "excluded", ""
    if saved is None:
        return "missing", str(array)
    if array is None:
        return "unexpected", str(saved)
    shape = saved.shape
    if from_torch(name, shape, config):
        shape = (*shape[2:], *shape[1::-1])
    if shape != array.shape or _is_float(array) != _is_float(saved):
        return "mismatched", f"{saved} in the checkpoint, {array} in the model"
    return "loaded", ""


def _renamed(saved: Iterable[str], config: WarmStart) -> dict[str, str]:
    """The model's name for each array of the checkpoint -> its name there."""
    unused = {pattern: None for pattern, _, _ in config.renames}
    originals: dict[str, str] = {}
    for original in saved:
        name = original
        for pattern, expression, replacement in config.renames:
            if match := expression.fullmatch(original):
                unused.pop(pattern, None)
                name = filled(replacement, match.groups())
                break
        if name in originals:
            raise OptionError(
                f"init_rename: both {originals[name]!r} and {original!r} would be {name!r}."
            )
        originals[name] = original
    for pattern in unused:
        raise OptionError(
            f"the pattern {pattern!r} of init_rename is the first to match no array of the "
            f"checkpoint.{did_you_mean(pattern, list(saved))}"
        )
    return originals


def _is_float(array: Array) -> bool:
    return "f" in array.dtype.lower()  # float32 or bfloat16; F32 or BF16 in safetensors


def _named(rows: Collection[MatchedArray]) -> str:
    shown = ", ".join(f"{row.name}: {row.note}" for row in list(rows)[:NAMED])
    return f"{shown} and {len(rows) - NAMED} more" if len(rows) > NAMED else shown


def model_names(params: Mapping[str, T], extra: Mapping[str, T]) -> dict[str, T]:
    """A model's arrays by their names in a warm start: parameters first, then the others.

    Both have their own names; where a parameter has the same name, the other is called
    "extra/NAME"."""
    return {
        **params,
        **{f"extra/{name}" if name in params else name: value for name, value in extra.items()},
    }
