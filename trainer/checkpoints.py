"""infeed checkpoints DIR: lists the checkpoints of a work directory, their arrays and values.

DIR may be on a disk or in a bucket. Needs neither jax nor a device. In Python: latest_checkpoint,
get_variable_names and get_variable_value."""

if __name__ == "__main__":
    from pipeline.console.interrupts import ctrl_c_exits

    ctrl_c_exits()  # before the imports: they take seconds

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from pipeline.console.console import Console, say, table
from pipeline.console.parser import Parser, exit_with
from pipeline.errors import CheckpointError, OptionError
from pipeline.sizes import format_bytes
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join
from trainer.checkpointing import keeping, listing
from trainer.checkpointing.contents import read_array, read_contents
from trainer.checkpointing.weights_file import export_weights

__all__ = [
    "EXAMPLES",
    "export_weights",
    "get_variable_names",
    "get_variable_value",
    "latest_checkpoint",
    "main",
]


EXAMPLES = ("model", "model --tree")
"""The command lines at the end of its help."""


def latest_checkpoint(workdir: str) -> int | None:
    """The step of the newest finished checkpoint of a work directory; None if there is none."""
    return max(listing.finished_steps(workdir), default=None)


def get_variable_names(
    checkpoint_path: str, step: int | None = None, *, all_arrays: bool = False
) -> list[str]:
    """The names of the model's arrays in a checkpoint: parameters, such as "params/dense/kernel",
    and statistics.

    checkpoint_path: a work directory, local, or in a bucket, or one checkpoint in it,
    <workdir>/checkpoints/<step>. step: which checkpoint of a work directory to read; default: the
    newest. all_arrays: also those of the optimizer and the averages, with complete names:
    "variables/params/dense/kernel". Raises CheckpointError for a checkpoint that is missing or
    damaged."""
    return [*_arrays_of(checkpoint_path, step, all_arrays)[1]]


def get_variable_value(
    checkpoint_path: str, name: str, step: int | None = None, *, all_arrays: bool = False
) -> np.ndarray:
    """The values of an array. Reads only this one, and compares it with its checksum.

    name: as get_variable_names returns it for the same other arguments. Raises OptionError for an
    unknown name, and whatever get_variable_names raises."""
    directory, names, arrays = _arrays_of(checkpoint_path, step, all_arrays)
    if name not in names:
        nearest = ", ".join(get_close_matches(name, names, cutoff=0.3)) or "none"
        what = "array" if all_arrays else "array of the model (all_arrays=True has others)"
        raise OptionError(
            f"{directory} has no {what} {name!r}. It has {len(names)}; nearest are: {nearest}."
        )
    return read_array(directory, names[name], arrays[names[name]])


def _arrays_of(
    checkpoint_path: str, step: int | None, all_arrays: bool
) -> tuple[str, dict[str, str], dict[str, Any]]:
    """The directory of a checkpoint; the names to call arrays by -> those that they have there;
    these -> the arrays."""
    workdir, step = listing.find_elsewhere(checkpoint_path, step)
    directory = listing.checkpoints_directory(workdir)
    below = "" if all_arrays else "variables/"
    arrays = read_contents(open_storage(workdir), directory, step)["arrays"]
    names = {name.removeprefix(below): name for name in arrays if name.startswith(below)}
    return join(directory, str(step)), names, arrays


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command. Raises InfeedError."""
    parser = Parser("trainer.checkpoints", __doc__, EXAMPLES, ("trainer",))
    parser.add_argument(
        "directory", metavar="DIR", help="a work directory, local or in a bucket (gs:// or s3://)"
    )
    parser.add_argument("--tree", action="store_true", help="list the arrays of one checkpoint")
    parser.add_argument(
        "--print", metavar="NAME", dest="name", help="print the values of one of its arrays"
    )
    parser.add_argument("--step", type=int, help="which checkpoint (default: the newest)")
    parser.add_argument("--json", action="store_true", help="print JSON, with all values")
    args = parser.parse_args(argv)
    if args.tree and args.name is not None:
        raise OptionError("--tree and --print are both given. Give one.")
    steps = listing.finished_steps(args.directory)
    directory = listing.checkpoints_directory(args.directory)
    step = listing.required_step(directory, steps, args.step)
    console = Console()
    if args.tree:
        page = read_contents(open_storage(args.directory), directory, step)["arrays"]
        columns = ("name", "dtype", "shape", "partition")
        rows = [
            (name, array["dtype"], str(array["shape"]), array["partition"])
            for name, array in page.items()
        ]
        title = f"Arrays of step {step}"
    elif args.name is not None:
        numbers = get_variable_value(args.directory, args.name, step, all_arrays=True)
        dtype = str(numbers.dtype)
        shape = [*numbers.shape]
        if args.json:
            page = {"step": step, "name": args.name, "dtype": dtype, "shape": shape}
            print(json.dumps(page | {"values": numbers.tolist()}))
        else:
            say(console, f"{args.name}: {dtype} {shape}, step {step}")
            for line in str(numbers).splitlines():
                say(console, line)
        return
    else:
        page = _listed(args.directory, steps if args.step is None else [step])
        columns = ("step", "saved", "size", "trained with", "evaluation")
        rows = map(_row, page)
        title = f"Checkpoints of {args.directory}"
    if args.json:
        print(json.dumps(page))
    else:
        console.print(table(columns, rows, title))


def _listed(workdir: str, steps: Sequence[int]) -> list[dict[str, Any]]:
    """One entry per checkpoint; that of a damaged one has the error instead of its contents."""
    storage = open_storage(workdir)
    directory = listing.checkpoints_directory(workdir)
    measured = keeping.Evaluations(workdir).read()
    entries = []
    for step in steps:
        size = listing.checkpoint_bytes(storage, join(directory, str(step)))
        try:
            page = read_contents(storage, directory, step)
            facts = {name: page[name] for name in ("time", "config", "versions", "mesh")}
        except CheckpointError as error:
            facts = {"damage": str(error)}
        evaluation = {"evaluation": measured.get(step), "best": False}
        entries.append({"step": step, "bytes": size, **facts, **evaluation})
    # By the newest settings, which the next run would use.
    config = next((entry["config"] for entry in reversed(entries) if "config" in entry), {})
    if config.get("keep_best"):
        best = keeping.best_step(measured, steps, config["keep_best"], config["keep_best_mode"])
        for entry in entries:
            entry["best"] = entry["step"] == best
    return entries


def _row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    measured = ", ".join(
        f"{name} {value:.4g}" for name, value in (entry["evaluation"] or {}).items()
    )
    return (
        f"{entry['step']:,}{' *best*' * entry['best']}",
        entry.get("time", "unknown").replace("T", " ").replace("+00:00", " UTC"),
        format_bytes(entry["bytes"]),
        entry.get("damage") or _summary(entry),
        measured or "none",
    )


def _summary(entry: Mapping[str, Any]) -> str:
    config = entry["config"]
    mesh = dict(entry["mesh"])
    device = mesh.pop("device")
    processes = mesh.pop("processes")
    axes = " x ".join(f"{axis} {size}" for axis, size in mesh.items()) or "one device"
    return (
        f"batch {config.get('global_batch_size')}, seed {config.get('seed')}; {axes} of {device}, "
        f"{processes} process{'es' * (processes > 1)}; jax {entry['versions']['jax']}"
    )


if __name__ == "__main__":
    exit_with(main)
