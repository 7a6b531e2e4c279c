"""Makes an export on one host: writes the SavedModel, has it verified, describes it, publishes it.

The SavedModel decodes the input, then calls the served function, converted from JAX.
TensorFlow runs it without JAX, on CPUs, NVIDIA GPUs and TPUs. The model's arrays are its variables,
so they are not in the graph, whose size is limited to 2 GB.

The description is its assets.extra/infeed.json: for clients, and for people who find it. origin:
see ExportOrigin. signatures: see _signature_facts. labels: prediction -> the class names of its
numbers. versions: of the libraries that made it. verified: with how many records, in which batch
sizes, and for each signature its tolerance and its largest difference. assets_extra: the names of
the files copied into the same directory."""

import contextlib
import json
import keyword
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pipeline.decoding.op import Features
from pipeline.errors import ExportError, InfeedError, StorageError
from pipeline.inputs.batch_decoder import Serving
from pipeline.logs import logger
from pipeline.shards.schema import Labels
from pipeline.spec import BYTES, ArraySpec, with_offsets
from pipeline.tf_cpu import tf
from trainer.checkpointing.contents import versions
from trainer.inputs import INDEX, MASK, Input
from trainer.mesh.batch_spec import named_leaves
from trainer.results import ExportResult
from trainer.serving.graph_decoding import (
    arrays_only,
    decode_payloads,
    decode_stored,
    decodes_images,
    narrowed,
    ops_without_graph,
)
from trainer.serving.publishing import (
    DESCRIPTION,
    EXTRA,
    ExportOptions,
    ExportOrigin,
    Exports,
    copy_file,
)
from trainer.serving.served_model import CLASS_NAME, ServedModel
from trainer.serving.verification import BATCH_SIZES, IMAGE_TOLERANCE, verify

log = logger("trainer")

Predicted = Sequence[Mapping[str, Any]]
"""name -> value, of each record."""
SERVING_DEFAULT, FEATURES, ARRAYS = "serving_default", "features", "arrays"


Signature = Mapping[str, Any]
"""Feature or array -> its tf.TensorSpec, of shape [n, ...], which has the name of the argument."""


def write_saved_model(
    directory: str,
    model: ServedModel,
    variables: Iterable[tuple[str, np.ndarray]],
    serving: Serving | None,
    labels: Mapping[str, Labels],
    platforms: Sequence[str],
) -> dict[str, Signature]:
    """Writes the SavedModel to an empty directory and returns its signatures by name.

    variables: name and value of the model's arrays, in order; each is copied before the next one is
    taken. serving: None leaves only the signature for arrays. labels: class names of predictions,
    which become further predictions. Raises ExportError for a model that cannot be traced with any
    number of rows."""
    module: Any = tf.Module()
    variable_type: Any = tf.Variable  # its stubs allow only tensors
    module.variables_of_model = [
        variable_type(value, name=name, trainable=False) for name, value in variables
    ]
    converted = _converted(model, platforms)

    def predicted(arrays: Features) -> Features:
        offsets = model.task.offsets
        arrays = {name: narrowed(name, arrays[name], offsets.get(name)) for name in model.arrays}
        predictions = converted(module.variables_of_model, arrays)
        predictions = with_offsets(predictions, model.task.added, tf.cast)
        for key, names in labels.items():
            predictions[CLASS_NAME.format(key)] = _named(predictions[key], names)
        return predictions

    signatures = dict[str, Signature]()
    functions = dict[str, Any]()

    def add(name: str, specs: Mapping[str, Any], decode: Callable[[Features], Features]) -> None:
        signatures[name] = _signature(specs)
        functions[name] = _function(lambda inputs: predicted(decode(inputs)), signatures[name])

    with _without_directories():
        if serving is not None:
            kind = serving.kind
            rows = serving.rows
            payloads = {kind: ArraySpec((), BYTES)}
            add(SERVING_DEFAULT, payloads, lambda inputs: decode_payloads(rows, inputs[kind]))
            if serving.stored is not None:
                add(FEATURES, serving.stored, partial(decode_stored, rows))
        add(ARRAYS, model.arrays, lambda arrays: arrays)
    module.functions = functions  # what they capture is saved with the module
    tf.saved_model.save(module, directory, signatures=functions)
    return signatures


@contextlib.contextmanager
def _without_directories() -> Iterator[None]:
    """JAX writes the source lines of operations into the graph: here, with the names of the files
    alone."""
    option = "jax_hlo_source_file_canonicalization_regex"
    before = getattr(jax.config, option)
    jax.config.update(option, ".*/")
    try:
        yield
    finally:
        jax.config.update(option, before)


def _converted(model: ServedModel, platforms: Sequence[str]) -> Callable[..., Features]:
    try:
        from jax.experimental import jax2tf
    except ImportError as e:
        raise ExportError(
            f"JAX {jax.__version__} has no jax.experimental.jax2tf, which exports need. Install "
            "the newest version that has it."
        ) from e
    shapes = [None, dict.fromkeys(model.arrays, "rows, ...")]
    return jax2tf.convert(
        model.predict,
        polymorphic_shapes=shapes,
        with_gradient=False,
        native_serialization_platforms=tuple(platforms),
    )


def _signature(specs: Mapping[str, Any]) -> Signature:
    arguments = set[str]()
    signature = dict[str, Any]()
    for name, spec in specs.items():
        argument = _argument(name)
        while argument in arguments:  # as of "a b" and "a-b"
            argument += "_"
        arguments.add(argument)
        signature[name] = tf.TensorSpec([None, *spec.shape], tf.as_dtype(spec.dtype), argument)
    return signature


def _argument(name: str) -> str:
    """A name of a parameter: with others, TensorFlow or Python would rename it or refuse it."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", name)
    name = name if name[:1].isalpha() else f"arg_{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def _function(compute: Callable[[Features], Features], signature: Signature) -> Any:
    def signed(**arguments: Any) -> Features:
        return compute({name: arguments[spec.name] for name, spec in signature.items()})

    arguments = {spec.name: spec for spec in signature.values()}
    try:
        return tf.function(signed, autograph=False).get_concrete_function(**arguments)
    except InfeedError:
        raise
    # whatever JAX raises: the same function has run with a fixed number of rows
    except Exception as e:
        reason = str(e).strip().partition("\n")[0]
        raise ExportError(
            f"the model cannot be converted for any number of rows: {reason.rstrip('.')}. Take the "
            "number of rows from x.shape[0], not from len(x), and use it only in shapes."
        ) from e


def _named(numbers: Any, labels: Labels) -> Any:
    """The names of classes; "" for a number without one."""
    places = tf.cast(numbers, tf.int64) - labels.base
    known = (places >= 0) & (places < len(labels.names))
    names = tf.gather(tf.constant(labels.names), tf.where(known, places, tf.zeros_like(places)))
    return tf.where(known, names, tf.constant(""))


@dataclass(frozen=True)
class ServedExamples:
    """The first records of an input, in every form in which a served model takes them.

    arrays: name -> [count, ...], of a batch. serving: None if an export cannot decode records as
    the input does; then arrays are their only form."""

    arrays: Mapping[str, np.ndarray]
    count: int
    serving: Serving | None

    @classmethod
    def first_of(cls, source: Input, model: ServedModel, count: int) -> "ServedExamples":
        """The first records, up to `count`, of an input that has them in its first batch."""
        batches = source.batches(source.info.start)
        batch = next(batches)
        getattr(batches, "close", lambda: None)()
        rows = np.flatnonzero(batch[MASK] > 0)[:count]
        arrays = {name: leaf[rows] for name, leaf in named_leaves(dict(batch)).items()}
        serving = _serving(source if INDEX in arrays else None, model.arrays)
        return cls(with_offsets(arrays, model.task.offsets), len(rows), serving)

    def tolerances(self, tolerance: float) -> dict[str, float]:
        """The tolerance by signature. tolerance: of one that decodes no images."""
        images = self.serving is not None and decodes_images(self.serving)
        decoded = max(tolerance, IMAGE_TOLERANCE) if images else tolerance
        return {SERVING_DEFAULT: decoded, FEATURES: decoded, ARRAYS: tolerance}

    def inputs(self, signatures: Mapping[str, Signature], count: int) -> dict[str, dict[str, Any]]:
        """signature -> argument -> the values of the first `count` records. Raises as
        Serving.payloads."""
        values: dict[str, Mapping[str, Any]] = {ARRAYS: self.arrays}
        if self.serving is not None:
            payloads = self.serving.payloads(self.arrays[INDEX].tolist())
            values[SERVING_DEFAULT] = {self.serving.kind: payloads}
            values[FEATURES] = self.serving.stored_features(payloads)
        inputs = dict[str, dict[str, Any]]()
        for name, signature in signatures.items():
            inputs[name] = {spec.name: values[name][key][:count] for key, spec in signature.items()}
        return inputs


def make_export(
    options: ExportOptions,
    served: ServedModel,
    labels: Mapping[str, Labels],
    origin: ExportOrigin,
    arrays: Iterable[tuple[str, np.ndarray]],
    predicted: Predicted,
    examples: ServedExamples,
    check: Callable[[], None],
) -> ExportResult:
    """Makes and publishes one export.

    labels: those of the options that have names. arrays: of the model, by name. predicted: of these
    examples. check: called now and then; may raise."""
    exports = Exports(options.path)
    count = min(len(predicted), examples.count)
    if not count:
        raise ExportError(
            "the evaluation split begins without a good record to verify the export with. Give "
            "another split."
        )
    with exports.unpublished() as scratch:
        directory = scratch / "model"
        signatures = write_saved_model(
            str(directory), served, arrays, examples.serving, labels, options.platforms
        )
        expected = _expected(served, labels, predicted[:count])
        inputs = examples.inputs(signatures, count)
        most = examples.tolerances(options.tolerance)
        added = served.task.added
        apart = verify(str(directory), str(scratch), inputs, expected, added, most, check)
        tolerance = {name: most[name] for name in apart}
        differences = [
            f"{name} {value:.2g} (tolerance {most[name]:g})" for name, value in apart.items()
        ]
        log.info(
            "export: a process without JAX predicts %d records as predict does, in batches of %s; "
            "largest differences: %s",
            count, ", ".join(map(str, BATCH_SIZES)), ", ".join(differences),
        )  # fmt: skip
        extra = options.assets_extra or {}
        description = {
            "origin": asdict(origin),
            "signatures": _signature_facts(signatures, expected),
            "labels": {key: asdict(names) for key, names in labels.items()},
            "versions": versions(),
            "verified": {
                "records": count,
                "batch_sizes": BATCH_SIZES,
                "tolerance": tolerance,
                "difference": apart,
            },
            "assets_extra": [*extra],
        }
        write_description(directory, description)
        for name, path in extra.items():
            copy_file(str(path), str(directory / EXTRA / name))
        check()
        path = exports.publish(directory)
    log.info("export: published the model of step %d in %s", origin.step, path)
    if options.keep is not None:
        try:
            exports.keep(options.keep)
        except StorageError as e:
            log.warning("export: cannot remove older exports: %s", e)
    return ExportResult(path, origin.step, max(apart.values()))


def _expected(
    served: ServedModel, labels: Mapping[str, Labels], predicted: Predicted
) -> dict[str, np.ndarray]:
    """What the export has to answer: predictions, and names of classes."""
    expected = dict[str, np.ndarray]()
    for name in served.predictions:
        expected[name] = np.stack([record[name] for record in predicted])
    for key, names in labels.items():
        classes = [(names.name_of(number) or "").encode() for number in expected[key].tolist()]
        expected[CLASS_NAME.format(key)] = np.array(classes, object)
    return expected


def _serving(source: Any, needed: Collection[str]) -> Serving | None:
    """How an export decodes records to the arrays `needed`; None, which the log explains, if it
    cannot."""
    serving = source.serving(list(needed)) if hasattr(source, "serving") else None
    if serving is None or isinstance(serving.rows.layout, np.dtype):
        log.info("export: its records are neither Examples nor files, so it takes only arrays")
        return None
    if ops := ops_without_graph(serving):
        log.warning("%s", arrays_only(ops))
        return None
    return serving


def _signature_facts(
    signatures: Mapping[str, Signature], predictions: Mapping[str, Any]
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
    facts = {}
    for signature_name, signature in signatures.items():
        inputs = {
            spec.name: {"name": name, "shape": list(spec.shape[1:]), "dtype": spec.dtype.name}
            for name, spec in signature.items()
        }
        facts[signature_name] = {"inputs": inputs, "predictions": outputs}
    return facts


def write_description(saved_model: Path, description: Mapping[str, Any]) -> None:
    """Writes the file; other files in assets.extra stay."""
    directory = saved_model / EXTRA
    directory.mkdir(exist_ok=True)
    (directory / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
