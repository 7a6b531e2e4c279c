"""The weights of a checkpoint as a file of safetensors, for other libraries. Needs neither jax nor
a device."""

import json
from typing import Any, get_args

from pipeline.checks import check_choice
from pipeline.errors import CheckpointError, OptionError
from pipeline.packages import how_to_install
from pipeline.shards.typed_json import JsonFile
from pipeline.sizes import counted
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join, read_file
from trainer.checkpointing.contents import read_contents
from trainer.checkpointing.keeping import Evaluations, best_step
from trainer.checkpointing.kept_data import kept
from trainer.checkpointing.listing import (
    WhichStep,
    checkpoints_directory,
    find_elsewhere,
    finished_steps,
)
from trainer.checkpointing.mappings import MAPPINGS, Names
from trainer.checkpointing.weights import as_theirs, layouts_of, of_infeed
from trainer.config import Model
from trainer.reports.workdir import EVAL_RESULT


def export_weights(
    checkpoint_path: str,
    output: str,
    *,
    names: Names = "own",
    step: WhichStep | None = None,
    model: Model | None = None,
) -> int:
    """Writes the parameters and statistics of a checkpoint to a new .safetensors file, and returns
    the step of the checkpoint.

    checkpoint_path: a work directory, or one checkpoint in it, <workdir>/checkpoints/<step>; both
    may be in a bucket, and so may output. names: "own" are those of --show-state; or those of a
    library that has this model, in its layout. step: a number, or "best" by keep_best; default: the
    newest. model: the parameters as trained ("params") or the averaged ones ("ema"); default: those
    that evaluations use. The file's metadata have as "infeed" a JSON object with step, model, class
    names, and the metrics of the model's evaluation, with its data and whether it is proven. Raises
    OptionError for a file that exists and for names of another model, CheckpointError for a
    checkpoint that is missing or damaged."""
    try:
        from safetensors.numpy import save  # not needed to list checkpoints
    except ImportError as error:
        remedy = how_to_install("train")
        raise OptionError(f"weights need the package safetensors: {remedy}") from error
    storage = open_storage(output)
    exists = OptionError(f"{output} exists. Remove it, or give another name.")
    if not output.endswith(".safetensors"):
        raise OptionError(f"{output} must end in .safetensors: files are recognized by it.")
    if storage.exists(output):
        raise exists
    workdir, step, config = _checkpoint(checkpoint_path, step)
    models = ["params"] if config["ema_decay"] is None else ["params", "ema"]
    evaluated = config["evaluate"] if models[1:] else "params"
    model = model or evaluated
    check_choice("model", model, models)
    weights = of_infeed(join(checkpoints_directory(workdir), str(step)), model == "ema")
    layouts = {library: each for each in layouts_of(weights.arrays) for library in each.libraries}
    if names not in ("own", *layouts):
        check_choice("names", names, get_args(Names))
        tables = [each for each in MAPPINGS if names in each.libraries]
        differing = sorted(min((each.differences(weights.arrays) for each in tables), key=len))
        raise OptionError(
            f"names={names!r} is not one of {', '.join(('own', *layouts))}: this model differs "
            f"from {names}'s in {counted(len(differing), 'array')} ({', '.join(differing[:3])})."
        )
    arrays = {name: weights.read(name) for name in weights.arrays}
    if names != "own":
        arrays = as_theirs(layouts[names], arrays)
    description = kept(workdir, step)
    about = {
        "step": step,
        "model": model,
        "classes": description and description.labels and description.labels.names,
        "evaluation": _evaluation(workdir, step) if model == evaluated else None,
    }
    if not storage.create(output, save(arrays, {"format": "pt", "infeed": json.dumps(about)})):
        raise exists
    return step


def _checkpoint(path: str, step: WhichStep | None) -> tuple[str, int, dict[str, Any]]:
    """The work directory, the step, and the settings of the run when it was saved."""
    workdir, number = find_elsewhere(path, None if step == "best" else step)
    directory = checkpoints_directory(workdir)
    config = read_contents(open_storage(workdir), directory, number)["config"]
    if step != "best":
        return workdir, number, config
    steps, metric = finished_steps(workdir), config["keep_best"]
    best = metric and best_step(
        Evaluations(workdir).read(), steps, metric, config["keep_best_mode"]
    )
    if not best:
        raise CheckpointError(
            f"{workdir} has no best checkpoint: its keep_best is {metric!r}. Give one of the steps "
            f"{steps}."
        )
    return _checkpoint(workdir, best)


def _evaluation(workdir: str, step: int) -> dict[str, Any] | None:
    """eval_result.json if it is of this step, else the metrics of keep_best."""
    path = join(workdir, EVAL_RESULT)
    file = JsonFile(path, CheckpointError, "Remove it: the next evaluation writes it again.")
    page = file.read(read_file(open_storage(workdir), path) or "{}", dict[str, Any])
    if page.get("step") == step and page.get("checkpoint_path") is None:
        return page
    return Evaluations(workdir).read().get(step)
