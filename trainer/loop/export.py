"""An export: predicts a few records, writes the SavedModel, has a new process serve the same
records, and publishes it. Loads TensorFlow.

All hosts predict, and gather the model's arrays; host 0 does the rest, while the others wait for
its result.

An export describes itself in assets.extra/infeed.json, for clients, and for people who find it.
origin: the step and the work directory of the model's checkpoint, the metrics of its evaluation, if
they are known, which of its parameters they are, and the fingerprint of the data that it was
verified on. signatures: see _facts. labels: prediction -> the class names of its numbers. versions:
of the libraries that made it. verified: with how many records, in which batch sizes, and for each
signature its tolerance and its largest difference. assets_extra: the names of the files copied into
the same directory."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from pipeline.errors import ExportError, InfeedError, OptionError, StorageError
from pipeline.hosts import ONE_HOST
from pipeline.inputs.batch_decoder import Serving
from pipeline.logs import logger
from pipeline.shards.schema import Labels
from pipeline.spec import INDEX, MASK
from trainer.checkpointing.contents import versions
from trainer.checkpointing.listing import WhichStep
from trainer.inputs import InputFn, as_function, as_input, first_batches
from trainer.loop.job import Job, OpenedInput
from trainer.loop.prediction import Prediction
from trainer.loop.session import Session, open_session, restore
from trainer.mesh.batch_spec import named_leaves
from trainer.results import ExportResult
from trainer.serving.graph_decoding import arrays_only
from trainer.serving.publishing import EXTRA, ExportOptions, Exports, copy_file
from trainer.serving.served_function import (
    CLASS_NAME,
    ServedFunction,
    Signature,
    named_classes,
    serve,
    signatures_of,
    write_saved_model,
)
from trainer.serving.verification import BATCH_SIZES, verify
from trainer.step.state import model_of
from trainer.step.steps import predict_step
from trainer.task import TrainState, Variables, chosen

log = logger("trainer")

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
    with open_session(job) as session:
        start = restore(session, "predict", input_fn, step, checkpoint_path, export=str(options))
        with session.supervisor.leaving():
            origin = {
                "step": start.step,
                "workdir": start.checkpoints.workdir,
                "metrics": start.checkpoints.metrics(start.step),
            }
            with session.activity.doing("exporting"):
                return export(session, start.opened, start.state, origin, options)


def export(
    session: Session,
    opened: OpenedInput,
    state: TrainState,
    origin: Mapping[str, Any],
    options: ExportOptions,
) -> ExportResult:
    """Exports a model of the state.

    opened: in the mode predict. origin: the step, workdir and metrics of the description. Raises an
    error of host 0 on every host."""
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
        function = serve(job.task, variables, spec, options.keys)
    labels = named_classes(options.labels or {}, function)
    predicted = _predicted(session, opened, variables, function)
    arrays = _gathered(variables)
    origin = {**origin, "model": model, "fingerprint": opened.source.info.fingerprint}

    def make() -> ExportResult:
        hosts = replace(ONE_HOST, rows=(range(RECORDS),))
        context = replace(job.context("predict", RECORDS, hosts), workers=0)  # for so few records
        source = as_input(as_function(opened.input_fn)(context), context)
        (batch,) = first_batches(source, 1).batches(None)
        serving = _serving(opened, function)
        check = session.supervisor.check
        return make_export(
            options, function, serving, labels, origin, arrays, predicted, batch, check
        )

    return _on_host_0(session, make, arrays)


def _predicted(
    session: Session, opened: OpenedInput, variables: Variables, function: ServedFunction
) -> list[dict[str, Any]]:
    """The served predictions of the first records, on every host."""
    batches = math.ceil(RECORDS / opened.global_batch)
    epoch = opened.source.info.steps_per_epoch
    first = first_batches(opened.source, 1 if epoch is None else min(batches, epoch))
    prediction = Prediction(session, replace(opened, source=first), variables)
    records = [
        chosen(named_leaves(record), list(function.predictions)) for record in prediction.records()
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


def _on_host_0(
    session: Session, make: Callable[[], ExportResult], arrays: Iterator[Any]
) -> ExportResult:
    """What host 0 makes, on every host. An error of host 0 is one of every host, so that all can go
    on after it."""
    failed: InfeedError | None = None

    def result_or_error() -> Any:
        nonlocal failed
        try:
            return asdict(make())
        except InfeedError as error:
            failed = error
            deque(arrays, maxlen=0)  # every host has to take part
            return str(error)

    if session.exchange.index > 0:
        deque(arrays, maxlen=0)
    answer = session.exchange.from_host_0("exported", result_or_error)
    if isinstance(answer, str):
        raise failed or ExportError(answer)
    return ExportResult(**answer)


def make_export(
    options: ExportOptions,
    function: ServedFunction,
    serving: Serving | None,
    labels: Mapping[str, Labels],
    origin: Mapping[str, Any],
    arrays: Iterable[tuple[str, np.ndarray]],
    predicted: Sequence[Mapping[str, Any]],
    batch: Mapping[str, Any],
    check: Callable[[], None],
) -> ExportResult:
    """Makes and publishes one export, on one host.

    serving: None if it takes only arrays.
    labels: those of the options that have names.
    arrays: of the model, by name.
    predicted: name -> value, of each of the first records.
    batch: the first of the input, which has these records.
    check: called now and then; may raise."""
    exports = Exports(options.path)
    good = np.flatnonzero(batch[MASK] > 0)[: len(predicted)]
    count = len(good)
    if not count:
        raise ExportError(
            "the evaluation split begins without a good record to verify the export with. Give "
            "another split."
        )
    records = {name: leaf[good] for name, leaf in named_leaves(dict(batch)).items()}
    signatures = signatures_of(function, serving, records, options.tolerance)
    with exports.unpublished() as scratch:
        directory = scratch / "model"
        write_saved_model(str(directory), function, arrays, signatures, labels, options.platforms)
        expected = _expected(function, labels, predicted[:count])
        tolerances = {name: each.tolerance for name, each in signatures.items()}
        apart = verify(
            str(directory),
            str(scratch),
            {name: each.records for name, each in signatures.items()},
            expected,
            function.task.added,
            tolerances,
            check,
        )
        log.info(
            "export: a process without JAX predicts %d records as predict does, in batches of %s; "
            "largest differences: %s",
            count,
            ", ".join(map(str, BATCH_SIZES)),
            ", ".join(
                f"{name} {value:.2g} (tolerance {tolerances[name]:g})"
                for name, value in apart.items()
            ),
        )
        extra = options.assets_extra or {}
        description = {
            "origin": origin,
            "signatures": _facts(signatures, expected),
            "labels": {key: asdict(names) for key, names in labels.items()},
            "versions": versions(),
            "verified": {
                "records": count,
                "batch_sizes": BATCH_SIZES,
                "tolerance": tolerances,
                "difference": apart,
            },
            "assets_extra": [*extra],
        }
        for name, path in extra.items():
            copy_file(str(path), str(directory / EXTRA / name))
        check()
        place = exports.publish(directory, description)
    log.info("export: published the model of step %d in %s", origin["step"], place)
    if options.keep is not None:
        try:
            exports.keep(options.keep)
        except StorageError as e:
            log.warning("export: cannot remove older exports: %s", e)
    return ExportResult(place, origin["step"], max(apart.values()))


def _serving(opened: OpenedInput, function: ServedFunction) -> Serving | None:
    """How an export decodes records; None, which the log explains, if it cannot.

    ExportError for records with other numbers than the model's, which an export takes."""
    source: Any = opened.source
    decodes = INDEX in opened.struct and hasattr(source, "serving")
    serving: Serving | None = source.serving(list(function.arrays)) if decodes else None
    if serving is None or isinstance(serving.rows.layout, np.dtype):
        log.info("export: its records are neither Examples nor files, so it takes only arrays")
        return None
    for key, renumbering in serving.rows.renumbered.items():
        if renumbering.changes:
            raise ExportError(
                "an export is verified with records that have the model's numbers, and the "
                f"evaluation split numbers the categories of {key!r} differently. Give records "
                "that were converted together with the training data."
            )
    if reason := arrays_only(serving.rows):
        log.warning("%s", reason)
        return None
    return serving


def _expected(
    function: ServedFunction, labels: Mapping[str, Labels], predicted: Sequence[Mapping[str, Any]]
) -> dict[str, np.ndarray]:
    """What the export has to answer: predictions, and names of classes."""
    expected = {
        name: np.stack([record[name] for record in predicted]) for name in function.predictions
    }
    for key, names in labels.items():
        classes = [(names.name_of(number) or "").encode() for number in expected[key].tolist()]
        expected[CLASS_NAME.format(key)] = np.array(classes, object)
    return expected


def _facts(
    signatures: Mapping[str, Signature], predictions: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """The inputs of each signature, argument -> name, shape and dtype; and the predictions, name ->
    shape and dtype."""
    outputs = {
        name: {
            "shape": list(value.shape[1:]),
            "dtype": "string" if value.dtype == object else str(value.dtype),
        }
        for name, value in predictions.items()
    }
    return {
        signature_name: {
            "inputs": {
                spec.name: {"name": name, "shape": list(spec.shape[1:]), "dtype": spec.dtype.name}
                for name, spec in signature.inputs.items()
            },
            "predictions": outputs,
        }
        for signature_name, signature in signatures.items()
    }
