"""What a run keeps of its data in <workdir>/description.json: with it, the model's numbers keep
their meaning.

Training writes it before the first step, and each checkpoint has its checksum. Evaluation,
prediction, sampling, export and `load` use it, whatever data they read, or none. No record is kept.
NumPy only."""

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.description import Describe, Description
from pipeline.errors import CheckpointError, Reject
from pipeline.logs import logger
from pipeline.raw.cells import document_cell, integer_cell, number_cell, number_or_nan
from pipeline.shards.example import Value
from pipeline.shards.frames import crc32c
from pipeline.shards.schema import Labels, Schema, Statistics
from pipeline.shards.typed_json import JsonFile, read_sealed, sealed
from pipeline.sources.in_memory import ExampleRecords
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join, read_file, write_file
from pipeline.tokenizers import TextFields
from trainer.checkpointing.contents import read_contents
from trainer.checkpointing.listing import checkpoints_directory, finished_steps
from trainer.checkpointing.warm_start import WarmStart
from trainer.checkpointing.warm_start_finding import find_checkpoint
from trainer.reports.workdir import CHECKPOINTS, DESCRIPTION, TOKENIZER

log = logger("trainer")
NONE = "none"
MOST_VALUES = 2**24  # of a feature of one record: the file may state any number
BLANK: Mapping[str, Value] = {"bytes": b"", "int64": 0, "float32": 0.0}


@dataclass(frozen=True)
class _File:
    """description.json, key by key. The tokenizer's own file, if it has one, is tokenizer.json."""

    schema: Schema
    labels: Labels | None
    columns: Statistics
    text: TextFields | None


def keep(workdir: str, description: Description | None) -> None:
    """Writes the description of a run that begins; None replaces that of an earlier one by one
    without features."""
    if description is None:
        if checksum(workdir) == NONE:
            return
        description = Description(Schema("unknown", {}))
    text = description.text
    page = {
        "schema": description.schema.to_json(),
        "labels": description.labels and asdict(description.labels),
        "columns": {name: asdict(each) for name, each in description.columns.items()},
        "text": text and text.fields(),
    }
    files = text.tokenizer_file() if text else {}
    description_file = {DESCRIPTION: json.dumps(sealed(page), indent=1).encode() + b"\n"}
    for name, content in (files | description_file).items():
        write_file(open_storage(workdir), join(workdir, name), content)


def checksum(workdir: str) -> str:
    """That of the description in a work directory and of its tokenizer's file, for checkpoints;
    NONE if there is no description."""
    storage = open_storage(workdir)
    files = [read_file(storage, join(workdir, name)) for name in (DESCRIPTION, TOKENIZER)]
    return NONE if files[0] is None else f"{crc32c(b''.join(filter(None, files))):08x}"


def kept(workdir: str, step: int | None = None, checkpoints: str = "") -> Description | None:
    """That of the run in a work directory; None if its data had none.

    step: the checkpoint that needs it, by default the newest. checkpoints: their directory, if it
    is elsewhere. CheckpointError if the description is damaged, or is not the checkpoint's."""
    path = join(workdir, DESCRIPTION)
    content = read_file(open_storage(workdir), path)
    file = JsonFile(path, CheckpointError, "Copy it again from where the model was trained.")
    page = None if content is None else read_sealed(file, content, _File)
    steps = finished_steps(workdir) if step is None else [step]
    if steps:
        _check_belongs(workdir, steps[-1], checkpoints or checkpoints_directory(workdir))
    if page is None or page.schema.opaque:
        return None
    for name, feature in page.schema.features.items():
        if (feature.num_values or 0) > MOST_VALUES:
            raise file.misfit(
                f"a record has {feature.num_values:,} values of {name!r}; allowed are "
                f"{MOST_VALUES:,}."
            )
    text = page.text.info(file, workdir) if page.text else None
    return Description(page.schema, page.labels, page.columns, text)


def _check_belongs(workdir: str, step: int, checkpoints: str) -> None:
    """CheckpointError unless the description is the one with which this checkpoint was trained."""
    try:
        contents = read_contents(open_storage(checkpoints), checkpoints, step)
    except CheckpointError:
        return  # whatever reads the checkpoint raises it, with the remedy
    expected, present = contents.get("description"), checksum(workdir)
    path = join(workdir, DESCRIPTION)
    if expected is None:
        _warn_unsealed(step, path)
    elif present != expected:
        state = f"has the checksum {present}, and {expected} is expected"
        if present == NONE:
            state = f"is missing (its checksum is {expected})"
        raise CheckpointError(
            f"{path} {state}: without the description that the checkpoint of step {step} was "
            "trained with, its numbers may mean something else. "
            + (
                "Remove it: that run had none."
                if expected == NONE
                else f"Copy it, and {TOKENIZER} if there is one, from where the model was trained."
            )
        )


@functools.cache  # a call asks several times
def _warn_unsealed(step: int, path: str) -> None:
    log.warning(
        "an older version saved the checkpoint of step %d, without the checksum of %s, which "
        "therefore cannot be verified",
        step,
        path,
    )


def as_in_run(workdir: str, step: int | None = None) -> Describe:
    """What describes the model of the run in a work directory: what it has kept. step: see
    kept."""
    own = kept(workdir, step)
    return lambda _: own


def as_begun(warm_start: WarmStart, target: str | None) -> Describe:
    """What describes the model of a run that begins: its data; with a warm start from a run of
    infeed, what described that one, but for the classes of the target, the feature that the model
    predicts."""
    before = kept_before(warm_start)
    return lambda data: before.continued_with(data, target) if before and data else data


def has_new_head(
    warm_start: WarmStart, description: Description | None, target: str | None
) -> bool:
    """Whether the classes of a run are not those of the run whose checkpoint its warm start begins
    with."""
    before = kept_before(warm_start)
    if before is None or description is None:
        return False
    labels, labels_before = (each.names(target) for each in (description, before))
    return (labels and labels.names) != (labels_before and labels_before.names)


def kept_before(warm_start: WarmStart) -> Description | None:
    """The description of the run whose checkpoint a warm start begins with; None if it has none."""
    if not warm_start.init_from:
        return None
    found = find_checkpoint(warm_start.init_from)
    if found.format != "infeed":
        return None
    checkpoints, _, step = found.path.rpartition("/")
    above, _, name = checkpoints.rpartition("/")
    workdir = above if name == CHECKPOINTS else checkpoints
    return kept(workdir or ".", int(step), checkpoints or ".")


def records_like(
    description: Description,
    name: str,
    examples: Iterable[dict[str, Value]] = ({},),
    places: Sequence[str] = (),
    schema: Schema | None = None,
) -> ExampleRecords:
    """Examples in memory as records of a run: features that one lacks are blank. Default: one blank
    record.

    places: what messages call each of them. schema: default: that of the run."""
    schema = schema or description.schema
    blank: dict[str, Any] = {
        key: [BLANK[feature.dtype]] * (feature.num_values or 0)
        for key, feature in schema.features.items()
    }
    filled = (blank | example for example in examples)
    return ExampleRecords(
        name, schema, filled, description.labels, places=places, description=description
    )


def row_values(schema: Schema, cells: Mapping[str, Any]) -> dict[str, Value]:
    """The cells of a table's row whose columns have the names of features, as their values; NaN for
    a missing number.

    Raises Reject."""
    features = schema.features
    try:
        values = {
            name: _value(schema, name, cell) for name, cell in cells.items() if name in features
        }
    except ValueError as error:
        raise Reject(str(error)) from error
    if not values:
        raise Reject(f"none of the columns {', '.join(cells)} is a feature ({', '.join(features)})")
    return values


def _value(schema: Schema, name: str, cell: Any) -> Any:
    if isinstance(cell, list):
        return [_value(schema, name, item) for item in cell]
    feature = schema.features[name]
    if feature.dtype == "bytes":
        return document_cell(name, cell)
    number = schema.table.number(cell)
    number = feature.missing if number is None else number
    return number_or_nan(name, number, integer_cell if feature.dtype == "int64" else number_cell)
