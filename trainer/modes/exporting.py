"""An export: predicts a few records, writes the SavedModel, has a new process serve the same records, and publishes it.

All hosts predict, and gather the model's arrays; host 0 does the rest, while the others wait for its result."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from pipeline.errors import OptionError, did_you_mean
from pipeline.shards.schema import Labels
from trainer.batch_spec import named_leaves
from trainer.checkpointing.manager import WhichStep
from trainer.config import Model, check_positive_int
from trainer.ema import model_of, with_model
from trainer.exporting.description import Origin
from trainer.exporting.examples import Examples
from trainer.exporting.making import Making
from trainer.exporting.saved_model import PLATFORMS
from trainer.exporting.served_model import ServedModel, serve
from trainer.exporting.verification import BATCH_SIZES, TOLERANCE
from trainer.first_batches import FirstBatches
from trainer.inputs import InputFn
from trainer.modes.prediction import Prediction
from trainer.modes.preflight import agree_on
from trainer.modes.session import Session, open_session
from trainer.results import ExportResult
from trainer.setup import Opened, Setup
from trainer.state import TrainState
from trainer.task import Variables
from trainer.user_code import ShortErrors

__all__ = ["ExportOptions", "export", "export_checkpoint"]

RECORDS = math.lcm(*BATCH_SIZES)  # 21, so that every batch is full


@dataclass(frozen=True)
class ExportOptions:
    """path: of the directory of exports. model, keys, labels, tolerance, keep, platforms: see Trainer.export."""

    path: str
    model: Model | None = None
    keys: Sequence[str] | None = None
    labels: Mapping[str, Labels] | None = None
    tolerance: float = TOLERANCE
    keep: int | None = None
    platforms: Sequence[str] = PLATFORMS

    def __post_init__(self) -> None:
        """Raises OptionError for values that are not allowed."""
        if not 0 <= self.tolerance < math.inf:
            raise OptionError(f"tolerance={self.tolerance} must be at least 0 and finite.")
        if self.keep is not None:
            check_positive_int("keep", self.keep)
        if unknown := [name for name in self.platforms if name not in PLATFORMS]:
            raise OptionError(f"platforms has {unknown[0]!r}. Allowed: one or more of {', '.join(PLATFORMS)}.")
        if not self.platforms:
            raise OptionError(f"platforms is empty. Allowed: one or more of {', '.join(PLATFORMS)}.")


def export_checkpoint(
    setup: Setup, input_fn: InputFn, options: ExportOptions, step: WhichStep | None, checkpoint_path: str | None
) -> ExportResult:
    """See Trainer.export."""
    if setup.config.fast_dev_run:
        raise OptionError("fast_dev_run writes nothing, so it cannot export. Leave it out.")
    with ShortErrors(), open_session(setup.config) as session:
        with session.preemption.leavable():
            reading, step = session.reading(setup.config, step, checkpoint_path)
            opened = setup.open("predict", input_fn)
        facts = {"export": str(options), "checkpoint_path": checkpoint_path}
        agree_on(session.watchdog, setup, [opened], step, step, **facts)
        with session.preemption.leavable():
            state = reading.state(setup, opened, step)
            metrics = reading.checkpoints.metrics(step)
            result, _ = export(session, setup, opened, state, step, input_fn, options, metrics)
    return result


def export(
    session: Session,
    setup: Setup,
    opened: Opened,
    state: TrainState,
    step: int,
    input_fn: InputFn,
    options: ExportOptions,
    metrics: Mapping[str, float] | None = None,
) -> tuple[ExportResult, TrainState]:
    """Exports a model of the state. Returns the state in other arrays, too: its own are donated.

    opened: of input_fn, in the mode predict. metrics: of the newest evaluation, for the description."""
    model = options.model or setup.config.evaluated_models[0]
    if model == "ema" and not setup.config.averages:
        raise OptionError("model='ema', but the training averages no parameters. Set ema_decay, or export 'params'.")
    variables = model_of(state, model)
    with setup.naming_batch(opened):
        served = serve(setup.task, variables, setup.spec(opened), options.keys)
    labels = _checked_labels(options.labels or {}, served)
    predicted, variables = _predicted(session, setup, opened, variables, served)
    origin = Origin(step, model, setup.config.workdir, opened.source.fingerprint, dict(metrics or {}))
    arrays, result = _gathered(variables), None
    if jax.process_index() == 0:
        examples = Examples.first_of(setup, input_fn, served.arrays, RECORDS)
        making = Making(options.path, served, labels, origin, options.tolerance, options.platforms, options.keep)
        result = making(arrays, predicted, examples, session.check)
    else:
        for _ in arrays:  # every host takes part in gathering
            pass
    return _of_all_hosts(session, result), with_model(state, model, variables)


def _predicted(
    session: Session, setup: Setup, opened: Opened, variables: Variables, served: ServedModel
) -> tuple[list[dict[str, Any]], Variables]:
    """The served predictions of the first records, on every host; and the same variables in other arrays."""
    batches = math.ceil(RECORDS / opened.global_batch)
    epoch = opened.source.steps_per_epoch
    first = FirstBatches(opened.source, 1 if epoch is None else min(batches, epoch), repeat=False)
    prediction = Prediction(session, setup, replace(opened, source=first), variables, None, gather=True)
    records = [named_leaves(record) for record in prediction.records()]
    return [{name: record[name] for name in served.predictions} for record in records[:RECORDS]], prediction.variables


def _gathered(variables: Variables) -> Iterator[tuple[str, np.ndarray]]:
    """Name and value of each array, one after the other. All hosts have to iterate: some arrays are on several."""
    for name, leaf in named_leaves(variables).items():
        if leaf.is_fully_addressable or leaf.is_fully_replicated:
            yield name, np.asarray(leaf)
        else:
            yield name, multihost_utils.process_allgather(leaf, tiled=True)


def _checked_labels(labels: Mapping[str, Labels], served: ServedModel) -> dict[str, Labels]:
    for key in labels:
        if key not in served.predictions:
            raise OptionError(f"labels has {key!r}, which is not exported.{did_you_mean(key, served.predictions)}")
        row = served.predictions[key]
        if row.shape or not np.issubdtype(row.dtype, np.integer):
            raise OptionError(f"labels has {key!r}, which is {row.dtype} {list(row.shape)}: it must be one integer.")
    return {key: found for key, found in labels.items() if found.names}


def _of_all_hosts(session: Session, result: ExportResult | None) -> ExportResult:
    """The result of host 0, on every host."""
    watchdog = session.watchdog
    store, key = watchdog.registry.store, watchdog.registry.key("exported")
    if result is not None:
        store.put(key, json.dumps(asdict(result)))
        return result
    told = watchdog.wait(lambda: store.get(key), math.inf)  # if host 0 fails, this is a HostError
    return ExportResult(**json.loads(told or "null"))
