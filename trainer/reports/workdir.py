"""The names below a work directory. Whoever writes there names its files here, and whoever reads
recognises them here.

Arithmetic on names: no I/O, no JAX. Paths are built with storage.join(workdir, name)."""

import itertools
import os
import re
import secrets
from collections.abc import Iterable

OWNERS = "_owner"
"""The mark that runs have written here; the record of the run that owns the directory, and the lock
of its process."""
MARK = f"{OWNERS}/runs"
OWNER = f"{OWNERS}/owner.json"
OWNER_LOCK = f"{OWNERS}/lock"
CHECKPOINTS = "checkpoints"
"""A directory per step."""
STATE, CONTENTS = "state", "contents"
"""In the directory of a step, what Orbax calls items: the arrays, and their description."""
STEP_METADATA = "_CHECKPOINT_METADATA"
"""Orbax writes this into the directory of a step first."""
STEP_COMMITTED = "commit_success.txt"
"""Orbax writes this last in a bucket, which cannot rename. On a disk it renames, so there the name
is enough."""
ITEM_METADATA = "_METADATA"
"""Orbax writes this into the directory of an item with arrays: which there are."""
_OF_PROCESS = "ocdbt.process_"  # how a directory of each process begins
_IN_ITEMS = {
    "metadata",
    STEP_COMMITTED,
    ITEM_METADATA,
    "_sharding",
    "array_metadatas",
    "d",
    "manifest.ocdbt",
}
_STEP = re.compile("0|[1-9][0-9]{0,18}")
_RENAMED_LATER = re.compile(r"[0-9]+\.orbax-checkpoint-tmp")
SEGMENTS = "segments.jsonl"
"""The starts and ends of runs; see segments.py."""
EVALUATIONS = "evaluations.json"
"""The metrics of evaluated checkpoints, for keep_best."""
EVAL_RESULT, TRAIN_RESULT = "eval_result.json", "train_result.json"
DESCRIPTION, TOKENIZER = "description.json", "tokenizer.json"
"""What gives the numbers in the data of the run their meaning; see checkpointing/kept_data.py."""
ITERATORS = "iterators"
"""A directory with the iterator states of tf.data programs, a file for each checkpoint and host;
see checkpointing/iterator_files.py."""
PREDICTIONS = "predictions.jsonl"

TRAIN, _EVAL = "train", "eval"
METRICS = "metrics.jsonl"
"""In the directories of events: the scalars as lines of JSON; in a bucket in parts
metrics.jsonl.000000, ..."""
_EVENTS = "events.out.tfevents."
"""How the names of event files begin."""
_number = itertools.count()
_TOKEN = secrets.token_hex(4)

_ITERATOR = re.compile(r"([0-9]{9,})-host-([0-9]{5})")
_REPLACED = re.compile(
    "|".join(
        (DESCRIPTION, EVALUATIONS, EVAL_RESULT, PREDICTIONS, SEGMENTS, TOKENIZER, TRAIN_RESULT)
    ).replace(".", r"\.")
    + rf"|{ITERATORS}/{_ITERATOR.pattern}"
    + rf"|({TRAIN}|{_EVAL}|{_EVAL}_.+)/{METRICS}(\.\d+)?"
)


def eval_directory(name: str | None) -> str:
    """The directory with the events of an evaluation."""
    return _EVAL if name is None else f"{_EVAL}_{name}"


def eval_name(directory: str) -> str | None:
    """The inverse: "" for the evaluation without a name; None if it is not the directory of an
    evaluation."""
    match = re.fullmatch(f"{_EVAL}(?:_(.*))?", directory)
    return match and (match[1] or "")


def event_file(seconds: float) -> str:
    """A new name for an event file of this process. seconds: time.time()."""
    # Two writers that start in the same second need different files; in containers, host name and
    # pid may be equal.
    return (
        f"{_EVENTS}{int(seconds):010d}.{os.uname().nodename}.{os.getpid()}.{_TOKEN}.{next(_number)}"
    )


def iterator_file(step: int, host: int) -> str:
    """The name of an iterator state, in its directory."""
    return f"{step:09d}-host-{host:05d}"


def iterator_step(name: str, host: int) -> int | None:
    """The inverse: the step, if it is a state of this host."""
    match = _ITERATOR.fullmatch(name)
    return int(match[1]) if match and int(match[2]) == host else None


def replaced_by_runs(path: str) -> bool:
    """Whether runs replace, or add to, a file with this path in the work directory."""
    return bool(_REPLACED.fullmatch(path))


def is_step(name: str) -> bool:
    """Whether a directory among the checkpoints has the name of one."""
    return bool(_STEP.fullmatch(name))


def is_step_renamed_later(name: str) -> bool:
    """Whether it is one that Orbax writes on a disk, and renames when it is complete."""
    return bool(_RENAMED_LATER.fullmatch(name))


def is_of_orbax(names: Iterable[str]) -> bool:
    """Whether any of the names in an item is one of Orbax's."""
    return any(name in _IN_ITEMS or name.startswith(_OF_PROCESS) for name in names)
