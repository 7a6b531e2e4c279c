"""The function that is served: which predictions of a task, from which arrays of a batch; and the
SavedModel that calls it.

A prediction that does not depend on the model's arrays only repeats what the client has sent, such
as the label. So it is left out, and so are the arrays that only such predictions need.

The SavedModel decodes the input, then calls the function, converted from JAX. TensorFlow runs it
without JAX, on CPUs, NVIDIA GPUs and TPUs. The model's arrays are its variables, so they are not in
the graph, whose size is limited to 2 GB."""

import contextlib
import itertools
import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr
from jax.interpreters.partial_eval import dce_jaxpr

from pipeline.checks import did_you_mean
from pipeline.decoding.op import Features
from pipeline.errors import ExportError, InfeedError, OptionError
from pipeline.inputs.batch_decoder import Serving
from pipeline.logs import logger
from pipeline.shards.schema import Labels
from pipeline.spec import BYTES, INDEX, MASK, ArraySpec, with_offsets
from pipeline.tf_cpu import tf
from trainer.mesh.batch_spec import named_leaves
from trainer.mesh.placement import Placement
from trainer.serving.graph_decoding import decode_payloads, decode_stored, decodes_images, narrowed
from trainer.serving.verification import IMAGE_TOLERANCE
from trainer.task import Task, Variables, chosen

log = logger("trainer")

CLASS_NAME = "{}_name"  # the prediction with the class names of a prediction
SERVING_DEFAULT, FEATURES, ARRAYS = "serving_default", "features", "arrays"
Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class ServedFunction:
    """predict(leaves of the model, arrays) -> predictions, [n, ...] for any n, by name.

    arrays: name -> jax.ShapeDtypeStruct of one row, before offsets are subtracted.
    predictions: the same, before any is added.
    task: has the offsets.

    Names are paths such as "image" or "boxes/left"."""

    predict: Callable[[Sequence[Any], Arrays], dict[str, Any]]
    arrays: Mapping[str, jax.ShapeDtypeStruct]
    predictions: Mapping[str, jax.ShapeDtypeStruct]
    task: Task


def serve(
    task: Task, variables: Variables, struct: Mapping[str, Any], keys: Sequence[str] | None
) -> ServedFunction:
    """The served part of the task's predictions. variables: of any kind with shapes. struct: of a
    batch, with rows.

    keys: only these predictions; default: all. Raises ExportError if none of them depends on the
    model, or if one needs the number or the checksum of its record, which exist only in a
    dataset."""
    task = task.traced_in(Placement.of(jax.local_devices()[:1]).in_context)  # of a client
    model_leaves, model_tree = jax.tree.flatten(variables)
    tree = jax.tree.structure(dict(struct))
    batch = named_leaves(dict(struct))
    rows = {name: _row(leaf) for name, leaf in batch.items()}

    def everything(leaves: Sequence[Any], arrays: Arrays) -> dict[str, Any]:
        assert task.predict_fn is not None
        count = next(iter(arrays.values())).shape[0]
        # No served prediction depends on a missing array, but for the mask, as every row counts.
        filled = [
            arrays[name]
            if name in arrays
            else jnp.full((count, *row.shape), 1 if name == MASK else 0, row.dtype)
            for name, row in rows.items()
        ]
        model = jax.tree.unflatten(model_tree, leaves)
        return named_leaves(chosen(task.predict_fn(model, jax.tree.unflatten(tree, filled)), keys))

    leaves = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in model_leaves]
    batch.pop(MASK, None)
    traced, shapes = jax.make_jaxpr(everything, return_shape=True)(leaves, batch)
    # Dicts are flattened in the order of their keys. None: the model.
    sources: list[Any] = [None] * len(leaves) + sorted(batch)
    served = dict[str, set[str]]()
    for name, places in zip(sorted(shapes), dependencies(traced), strict=True):
        needs = {sources[place] for place in places}
        if None in needs:
            served[name] = needs - {None}
    arrays = sorted(set().union(*served.values()))
    if not served:
        raise ExportError(
            f"none of the predictions {', '.join(sorted(shapes)) or '(there are none)'} depends on "
            "the model's arrays, so there is nothing to serve. Let predict_fn return what the "
            "model computes."
        )
    if repeated := sorted(shapes.keys() - served.keys()):
        log.info(
            "export: left out %s: computed without the model, from what a client sends",
            ", ".join(repeated),
        )
    for name in arrays:
        if name.startswith("_"):
            users = ", ".join(key for key, needs in served.items() if name in needs)
            raise ExportError(
                f"the predictions {users} depend on {name}, which only records of a dataset have. "
                "Leave them out of the keys to export."
            )
    if not arrays:
        raise ExportError(
            f"the predictions {', '.join(served)} depend on no array of the batch, only on the "
            "model."
        )

    def predict(leaves: Sequence[Any], arrays: Arrays) -> dict[str, Any]:
        return chosen(everything(leaves, arrays), list(served))

    stored = task.stored({name: rows[name] for name in arrays})
    return ServedFunction(predict, stored, {name: _row(shapes[name]) for name in served}, task)


def _row(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def dependencies(closed: ClosedJaxpr) -> list[frozenset[int]]:
    """The numbers of the inputs that each output of a traced function depends on."""
    dependencies = []
    for only in np.eye(len(closed.jaxpr.outvars), dtype=bool).tolist():
        _, used = dce_jaxpr(closed.jaxpr, only)
        dependencies.append(frozenset(itertools.compress(itertools.count(), used)))
    return dependencies


def named_classes(labels: Mapping[str, Labels], function: ServedFunction) -> dict[str, Labels]:
    """Those of the labels that have names, which become predictions. Raises OptionError for a key
    that is not a served class."""
    for key in labels:
        if CLASS_NAME.format(key) in function.predictions:
            raise OptionError(
                f"labels has {key!r}, but {CLASS_NAME.format(key)!r} is a prediction already. "
                "Rename it."
            )
        if key not in function.predictions:
            hint = did_you_mean(key, function.predictions)
            raise OptionError(f"labels has {key!r}, which is not exported.{hint}")
        row = function.predictions[key]
        if row.shape or not np.issubdtype(row.dtype, np.integer):
            raise OptionError(
                f"labels has {key!r}, which is {row.dtype} {list(row.shape)}: it must be one "
                "integer."
            )
    return {key: names for key, names in labels.items() if names.names}


@dataclass(frozen=True)
class Signature:
    """A form in which a SavedModel takes records.

    inputs: feature or array -> its tf.TensorSpec, of shape [n, ...], which has the name of the
        argument.
    decode: tensors of the inputs -> arrays of a batch.
    records: the argument's values for some records, [n, ...] each, by its name.
    tolerance: how far its predictions of them may be from those of predict."""

    inputs: Mapping[str, Any]
    decode: Callable[[Features], Features]
    records: Mapping[str, Any]
    tolerance: float


def signatures_of(
    function: ServedFunction,
    serving: Serving | None,
    batch: Mapping[str, np.ndarray],
    tolerance: float,
) -> dict[str, Signature]:
    """The signatures of an export by name, with the records of a batch.

    serving: None leaves only the one for arrays. tolerance: of those that decode no images. Raises
    as Serving.payloads."""
    signatures = dict[str, Signature]()
    if serving is not None:
        rows, kind = serving.rows, serving.kind
        payloads = serving.payloads(batch[INDEX].tolist())
        decoded = max(tolerance, IMAGE_TOLERANCE) if decodes_images(rows) else tolerance
        signatures[SERVING_DEFAULT] = _signature(
            {kind: ArraySpec((), BYTES)},
            lambda inputs: decode_payloads(rows, inputs[kind]),
            {kind: payloads},
            decoded,
        )
        if serving.stored is not None:
            stored = serving.stored_features(payloads)
            decode = partial(decode_stored, rows)
            signatures[FEATURES] = _signature(serving.stored, decode, stored, decoded)
    arrays = with_offsets(batch, function.task.offsets)
    signatures[ARRAYS] = _signature(function.arrays, dict, arrays, tolerance)
    return signatures


def _signature(
    specs: Mapping[str, Any],
    decode: Callable[[Features], Features],
    values: Mapping[str, Any],
    tolerance: float,
) -> Signature:
    inputs, records = dict[str, Any](), dict[str, Any]()
    for name, spec in specs.items():
        argument = _argument(name)
        while argument in records:  # as of "a b" and "a-b"
            argument += "_"
        records[argument] = values[name]
        inputs[name] = tf.TensorSpec([None, *spec.shape], tf.as_dtype(spec.dtype), argument)
    return Signature(inputs, decode, records, tolerance)


def _argument(name: str) -> str:
    """A name of a parameter: with others, TensorFlow or Python would rename it or refuse it."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", name)
    name = name if name[:1].isalpha() else f"arg_{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def write_saved_model(
    directory: str,
    function: ServedFunction,
    variables: Iterable[tuple[str, np.ndarray]],
    signatures: Mapping[str, Signature],
    labels: Mapping[str, Labels],
    platforms: Sequence[str],
) -> None:
    """Writes the SavedModel to an empty directory.

    variables: name and value of the model's arrays, in order; each is copied before the next one is
    taken. labels: class names of predictions, which become further predictions. Raises ExportError
    for a model that cannot be traced with any number of rows."""
    module: Any = tf.Module()
    variable_type: Any = tf.Variable  # its stubs allow only tensors
    module.variables_of_model = [
        variable_type(value, name=name, trainable=False) for name, value in variables
    ]
    converted = _converted(function, platforms)
    task = function.task

    def predicted(arrays: Features) -> Features:
        arrays = {
            name: narrowed(name, arrays[name], task.offsets.get(name)) for name in function.arrays
        }
        predictions = converted(module.variables_of_model, arrays)
        predictions = with_offsets(predictions, task.added, tf.cast)
        for key, names in labels.items():
            predictions[CLASS_NAME.format(key)] = _named(predictions[key], names)
        return predictions

    with _without_directories():
        # what the functions capture is saved with the module
        module.functions = {
            name: _concrete(predicted, signature) for name, signature in signatures.items()
        }
    tf.saved_model.save(module, directory, signatures=dict(module.functions))


def _concrete(predicted: Callable[[Features], Features], signature: Signature) -> Any:
    def signed(**arguments: Any) -> Features:
        inputs = {name: arguments[spec.name] for name, spec in signature.inputs.items()}
        return predicted(signature.decode(inputs))

    arguments = {spec.name: spec for spec in signature.inputs.values()}
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


def _converted(function: ServedFunction, platforms: Sequence[str]) -> Callable[..., Features]:
    try:
        from jax.experimental import jax2tf
    except ImportError as e:
        raise ExportError(
            f"JAX {jax.__version__} has no jax.experimental.jax2tf, which exports need. Install "
            "the newest version that has it."
        ) from e
    shapes = [None, dict.fromkeys(function.arrays, "rows, ...")]
    return jax2tf.convert(
        function.predict,
        polymorphic_shapes=shapes,
        with_gradient=False,
        native_serialization_platforms=tuple(platforms),
    )


def _named(numbers: Any, labels: Labels) -> Any:
    """The names of classes; "" for a number without one."""
    places = tf.cast(numbers, tf.int64) - labels.base
    known = (places >= 0) & (places < len(labels.names))
    names = tf.gather(tf.constant(labels.names), tf.where(known, places, tf.zeros_like(places)))
    return tf.where(known, names, tf.constant(""))
