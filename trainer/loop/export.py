"""An export: predicts a few records, writes the SavedModel, has a new process serve the same
records, and publishes it.

All hosts predict, and gather the model's arrays; host 0 does the rest, while the others wait for
its result."""

import importlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from pipeline.checks import did_you_mean
from pipeline.errors import ExportError, InfeedError, OptionError
from pipeline.hosts import ONE_HOST
from pipeline.shards.schema import Labels
from trainer.checkpointing.manager import WhichStep
from trainer.inputs import InputFn, as_function, as_input, first_batches
from trainer.loop.job import Job, OpenedInput
from trainer.loop.prediction import Prediction
from trainer.loop.session import Session, open_session, restore
from trainer.mesh.batch_spec import named_leaves
from trainer.results import ExportResult
from trainer.serving.publishing import ExportOptions, ExportOrigin
from trainer.serving.served_model import CLASS_NAME, ServedModel, serve
from trainer.serving.verification import BATCH_SIZES
from trainer.step.state import model_of
from trainer.step.steps import predict_step
from trainer.task import TrainState, Variables, chosen

RECORDS = math.lcm(*BATCH_SIZES)  # 21, so that every batch is full


def export_checkpoint(
    job: Job,
    input_fn: InputFn,
    options: ExportOptions,
    step: WhichStep | None,
    checkpoint_path: str | None,
) -> ExportResult:
    """See Trainer.export."""
    if job.config.fast_dev_run:
        raise OptionError("fast_dev_run writes nothing, so it cannot export. Leave it out.")
    # loads TensorFlow, while no host waits for another
    importlib.import_module("trainer.serving.making")
    with open_session(job) as session:
        start = restore(session, "predict", input_fn, step, checkpoint_path, export=str(options))
        with session.supervisor.leaving():
            metrics = start.checkpoints.metrics(start.step)
            origin = ExportOrigin(start.step, start.checkpoints.workdir, metrics)
            with session.activity.doing("exporting"):
                return export(session, start.opened, start.state, origin, options)


def export(
    session: Session,
    opened: OpenedInput,
    state: TrainState,
    origin: ExportOrigin,
    options: ExportOptions,
) -> ExportResult:
    """Exports a model of the state.

    opened: in the mode predict. Raises an error of host 0 on every host."""
    from trainer.serving.making import ServedExamples, make_export  # loads TensorFlow

    job = session.job
    model = options.model or job.config.evaluated_model
    if model == "ema" and not job.config.averages:
        raise OptionError(
            "model='ema', but the run averages no parameters. Set ema_decay, or export 'params'."
        )
    variables = model_of(state, model)
    with job.naming_batch(opened):
        spec = job.spec(opened)
        # checks what predict_fn returns
        jax.eval_shape(predict_step(job.traced_task, options.keys), variables, spec)
        served = serve(job.task, variables, spec, options.keys)
    _check_numbers(opened.source, served)
    labels = _checked_labels(options.labels or {}, served)
    predicted = _predicted(session, opened, variables, served)
    arrays = _gathered(variables)

    def make() -> ExportResult:
        hosts = replace(ONE_HOST, rows=(range(RECORDS),))
        context = replace(job.context("predict", RECORDS, hosts), workers=0)  # for so few records
        source = as_input(as_function(opened.input_fn)(context), context)
        examples = ServedExamples.first_of(source, served, RECORDS)
        facts = replace(origin, model=model, fingerprint=opened.source.info.fingerprint)
        return make_export(
            options, served, labels, facts, arrays, predicted, examples, session.supervisor.check
        )

    return _on_host_0(session, make, arrays)


def _check_numbers(source: Any, served: ServedModel) -> None:
    """ExportError for records with other numbers than the model's, which an export takes."""
    serving = source.serving(list(served.arrays)) if hasattr(type(source), "serving") else None
    for key, renumbering in (serving.rows.renumbered if serving else {}).items():
        if renumbering.changes:
            raise ExportError(
                "an export is verified with records that have the model's numbers, and the "
                f"evaluation split numbers the categories of {key!r} differently. Give records "
                "that were converted together with the training data."
            )


def _predicted(
    session: Session, opened: OpenedInput, variables: Variables, served: ServedModel
) -> list[dict[str, Any]]:
    """The served predictions of the first records, on every host."""
    batches = math.ceil(RECORDS / opened.global_batch)
    epoch = opened.source.info.steps_per_epoch
    first = first_batches(opened.source, 1 if epoch is None else min(batches, epoch))
    prediction = Prediction(session, replace(opened, source=first), variables, gather=True)
    records = [
        chosen(named_leaves(record), list(served.predictions)) for record in prediction.records()
    ]
    return records[:RECORDS]


def _gathered(variables: Variables) -> Iterator[tuple[str, np.ndarray]]:
    """Name and value of each array, one after the other. All hosts have to iterate: some arrays are
    on several."""
    for name, leaf in named_leaves(variables).items():
        if leaf.is_fully_addressable or leaf.is_fully_replicated:
            yield name, np.asarray(leaf)
        else:
            yield name, multihost_utils.process_allgather(leaf, tiled=True)


def _checked_labels(labels: Mapping[str, Labels], served: ServedModel) -> dict[str, Labels]:
    for key in labels:
        if CLASS_NAME.format(key) in served.predictions:
            raise OptionError(
                f"labels has {key!r}, but {CLASS_NAME.format(key)!r} is a prediction already. "
                "Rename it."
            )
        if key not in served.predictions:
            raise OptionError(
                f"labels has {key!r}, which is not exported.{did_you_mean(key, served.predictions)}"
            )
        row = served.predictions[key]
        if row.shape or not np.issubdtype(row.dtype, np.integer):
            raise OptionError(
                f"labels has {key!r}, which is {row.dtype} {list(row.shape)}: it must be one "
                "integer."
            )
    return {key: names for key, names in labels.items() if names.names}


def _on_host_0(
    session: Session, make: Callable[[], ExportResult], arrays: Iterator[Any]
) -> ExportResult:
    """What host 0 makes, on every host. An error of host 0 is one of every host, so that all can go
    on after it."""
    failed: InfeedError | None = None

    def result_or_error() -> dict[str, Any]:
        nonlocal failed
        try:
            return asdict(make())
        except InfeedError as error:
            failed = error
            deque(arrays, maxlen=0)  # every host has to take part
            return {"error": str(error)}

    if session.exchange.index > 0:
        deque(arrays, maxlen=0)
    answer = session.exchange.from_host_0("exported", result_or_error)
    if "error" in answer:
        raise failed or ExportError(answer["error"])
    return ExportResult(**answer)
