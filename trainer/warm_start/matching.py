"""Which array of a checkpoint each array of the model begins with: a pure function of names, shapes and patterns."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, TypeVar

from pipeline.errors import CheckpointError, OptionError, did_you_mean
from trainer.warm_start.config import WarmStart

__all__ = ["Array", "MatchedArray", "Status", "check_rows", "described_rows", "from_torch", "match", "model_names"]

T = TypeVar("T")
Status = Literal["loaded", "missing", "unexpected", "mismatched", "excluded"]
MEANING: dict[Status, str] = {
    "missing": "not in the checkpoint",
    "unexpected": "not in the model",
    "mismatched": "of another shape or kind of number",
}
SHOWN, NAMED = 30, 3  # in the log, in an error


class Array(NamedTuple):
    """An array's shape, and its dtype as text."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


class MatchedArray(NamedTuple):
    """An array of the model, the checkpoint or both. name: the model's. theirs: its name in the checkpoint."""

    name: str
    theirs: str | None
    status: Status
    note: str = ""

    def __str__(self) -> str:
        origin = f" (in the checkpoint: {self.theirs})" if self.theirs not in (None, self.name) else ""
        return f"{self.status}: {self.name}{origin}{': ' * bool(self.note)}{self.note}"


def match(model: Mapping[str, Array], saved: Mapping[str, Array], config: WarmStart) -> list[MatchedArray]:
    """A row for each array of the model, then for each array that only the checkpoint has.

    Raises OptionError for a pattern without a match, and if two arrays of the checkpoint get the same name."""
    theirs = _renamed(saved, config)
    patterns = (*config.init_include, *config.init_exclude, *config.init_torch)
    _check_patterns(patterns, {**model, **theirs})
    rows = []
    for name in (*model, *(name for name in theirs if name not in model)):
        other = theirs.get(name)
        status, note = _status(model.get(name), None if other is None else saved[other], name, config)
        rows.append(MatchedArray(name, other, status, note))
    return rows


def from_torch(name: str, shape: tuple[int, ...], config: WarmStart) -> bool:
    """Whether this array of the checkpoint is in PyTorch's layout. name: the model's."""
    return len(shape) > 1 and _matches(name, config.init_torch)


def check_rows(path: str, rows: Collection[MatchedArray], config: WarmStart) -> None:
    """Raises CheckpointError, which names arrays and the remedy, unless the rows are what `config` allows."""
    problems = []
    for status, meaning in MEANING.items():
        bad = [row for row in rows if row.status == status]
        if bad and not _is_allowed(status, config):
            problems.append(f"{_counted(bad)} {meaning} ({_named(bad)})")
    if problems:
        raise CheckpointError(
            f"{path} does not fit the model: {'; '.join(problems)}. Rename arrays with init_rename, or leave them out "
            "with init_exclude. init_strict=False allows missing and unexpected arrays, and init_mismatch='skip' keeps "
            "the fresh values of mismatched ones."
        )
    if not any(row.status == "loaded" for row in rows):
        raise CheckpointError(
            f"{path} has no array for this model. Give its arrays the model's names with init_rename."
        )


def described_rows(rows: Collection[MatchedArray]) -> list[str]:
    """The number of arrays by status, then a line for each array that is not loaded, up to a limit."""
    counts = Counter(row.status for row in rows)
    others = [str(row) for row in rows if row.status != "loaded"]
    more = [f"and {len(others) - SHOWN} more"] if len(others) > SHOWN else []
    return [", ".join(f"{count} {status}" for status, count in counts.items()), *others[:SHOWN], *more]


def _status(ours: Array | None, theirs: Array | None, name: str, config: WarmStart) -> tuple[Status, str]:
    if not _matches(name, config.init_include) or _matches(name, config.init_exclude):
        return "excluded", ""
    if theirs is None:
        return "missing", str(ours)
    if ours is None:
        return "unexpected", str(theirs)
    shape = (*theirs.shape[2:], *theirs.shape[1::-1]) if from_torch(name, theirs.shape, config) else theirs.shape
    if shape != ours.shape or _is_float(ours) != _is_float(theirs):
        return "mismatched", f"{theirs} in the checkpoint, {ours} in the model"
    return "loaded", ""


def _renamed(saved: Iterable[str], config: WarmStart) -> dict[str, str]:
    """The model's name for each array of the checkpoint -> its name there."""
    renames, used = config.renames, set()
    theirs: dict[str, str] = {}
    for original in saved:
        name = original
        for pattern, expression, replacement in renames:
            if found := expression.fullmatch(original):
                used.add(pattern)
                kept = iter(found.groups())
                name = "".join(next(kept) if part == "*" else part for part in replacement)
                break
        if name in theirs:
            raise OptionError(f"init_rename: both {theirs[name]!r} and {original!r} would be {name!r}.")
        theirs[name] = original
    for pattern, _, _ in renames:
        if pattern not in used:
            raise OptionError(
                f"the pattern {pattern!r} of init_rename is the first to match no array of the checkpoint."
                f"{did_you_mean(pattern, list(saved))}"
            )
    return theirs


def _check_patterns(patterns: Iterable[str], names: Collection[str]) -> None:
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise OptionError(
                f"the pattern {pattern!r} matches no array of the model or the checkpoint."
                f"{did_you_mean(pattern, names)}"
            )


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_float(array: Array) -> bool:
    return "float" in array.dtype


def _is_allowed(status: Status, config: WarmStart) -> bool:
    return config.init_mismatch == "skip" if status == "mismatched" else not config.init_strict


def _counted(rows: Collection[MatchedArray]) -> str:
    return f"{len(rows)} arrays are" if len(rows) > 1 else "1 array is"


def _named(rows: Collection[MatchedArray]) -> str:
    shown = [f"{row.name}: {row.note}" for row in list(rows)[:NAMED]]
    return ", ".join(shown) + (f" and {len(rows) - NAMED} more" if len(rows) > NAMED else "")


def model_names(params: Mapping[str, T], extra: Mapping[str, T]) -> dict[str, T]:
    """A model's arrays by their names in a warm start: parameters first, then the others.

    Both have their own names; where a parameter has the same name, the other is called "extra/NAME"."""
    return {**params, **{f"extra/{name}" if name in params else name: value for name, value in extra.items()}}
