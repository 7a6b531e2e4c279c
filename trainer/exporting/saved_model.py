"""Writes a SavedModel: the served function, converted from JAX, behind the decoding of the input.

TensorFlow runs it without JAX, on CPUs, NVIDIA GPUs and TPUs. The model's arrays are its variables, so they are not in
the graph, whose size is limited to 2 GB."""

import contextlib
import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from pipeline.decoding.op import Features
from pipeline.errors import ExportError, InfeedError
from pipeline.inputs.batch_decoder import Serving
from pipeline.shards.schema import Labels
from pipeline.spec import BYTES, ArraySpec
from pipeline.tf_cpu import tf
from trainer.exporting.graph_decoding import decode_payloads, decode_stored
from trainer.exporting.served_model import CLASS_NAME, ServedModel

SERVING_DEFAULT, FEATURES, ARRAYS = "serving_default", "features", "arrays"


@dataclass(frozen=True)
class Signature:
    """inputs: argument -> the feature or array that it is; with shape [n, ...] and a dtype of TensorFlow."""

    inputs: Mapping[str, str]
    specs: Mapping[str, Any]


def write_saved_model(
    directory: str,
    model: ServedModel,
    variables: Iterable[tuple[str, np.ndarray]],
    serving: Serving | None,
    labels: Mapping[str, Labels],
    platforms: Sequence[str],
) -> dict[str, Signature]:
    """Writes the SavedModel to an empty directory and returns its signatures by name.

    variables: name and value of the model's arrays, in order; each is copied before the next one is taken. serving:
    None leaves only the signature for arrays. labels: class names of predictions, which become further predictions.
    Raises ExportError for a model that cannot be traced with any number of rows."""
    module: Any = tf.Module()
    made: Any = tf.Variable  # its stubs allow only tensors
    module.variables_of_model = [made(value, name=name, trainable=False) for name, value in variables]
    converted = _converted(model, platforms)

    def predicted(arrays: Features) -> Features:
        made = converted(module.variables_of_model, {name: arrays[name] for name in model.arrays})
        return {**made, **{CLASS_NAME.format(key): _named(made[key], names) for key, names in labels.items()}}

    signatures, functions = dict[str, Signature](), dict[str, Any]()

    def add(name: str, specs: Mapping[str, ArraySpec], decode: Callable[[Features], Features]) -> None:
        signature = signatures[name] = _signature(specs)
        functions[name] = _function(lambda given: predicted(decode(given)), signature)

    with _without_directories():
        if serving is not None:
            kind, rows = serving.kind, serving.rows
            add(SERVING_DEFAULT, {kind: ArraySpec((), BYTES)}, lambda given: decode_payloads(rows, given[kind]))
            if serving.stored is not None:
                add(FEATURES, serving.stored, partial(decode_stored, rows))
        add(ARRAYS, {name: ArraySpec(row.shape, row.dtype) for name, row in model.arrays.items()}, lambda given: given)
    module.functions = functions  # what they capture is saved with the module
    tf.saved_model.save(module, directory, signatures=functions)
    return signatures


@contextlib.contextmanager
def _without_directories() -> Iterator[None]:
    """JAX writes the source lines of operations into the graph: here, with the names of the files alone."""
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
            f"JAX {jax.__version__} has no jax.experimental.jax2tf, which exports need. Install the newest "
            "version that has it."
        ) from e
    shapes = [None, dict.fromkeys(model.arrays, "rows, ...")]
    return jax2tf.convert(
        model.predict,
        polymorphic_shapes=shapes,
        with_gradient=False,
        native_serialization_platforms=tuple(platforms),
    )


def _signature(specs: Mapping[str, ArraySpec]) -> Signature:
    arguments = dict[str, str]()
    for name in specs:
        argument = _argument(name)
        if argument in arguments:
            raise ExportError(
                f"{arguments[argument]!r} and {name!r} are both {argument!r} in a SavedModel. Rename one."
            )
        arguments[argument] = name
    tensors = {
        argument: tf.TensorSpec([None, *specs[name].shape], tf.as_dtype(specs[name].dtype), argument)
        for argument, name in arguments.items()
    }
    return Signature(arguments, tensors)


def _argument(name: str) -> str:
    """A name of a parameter: with others, TensorFlow or Python would rename it or refuse it."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", name)
    name = name if name[:1].isalpha() else f"arg_{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def _function(compute: Callable[[Features], Features], signature: Signature) -> Any:
    def signed(**given: Any) -> Features:
        return compute({name: given[argument] for argument, name in signature.inputs.items()})

    try:
        return tf.function(signed, autograph=False).get_concrete_function(**signature.specs)
    except InfeedError:
        raise
    except Exception as e:  # whatever JAX raises: the same function has run with a fixed number of rows
        reason = str(e).strip().partition("\n")[0]
        raise ExportError(
            f"the model cannot be converted for any number of rows: {reason.rstrip('.')}. Take the number of rows from "
            "x.shape[0], not from len(x), and use it only in shapes."
        ) from e


def _named(numbers: Any, labels: Labels) -> Any:
    """The names of classes; "" for a number without one."""
    places = tf.cast(numbers, tf.int64) - labels.base
    known = (places >= 0) & (places < len(labels.names))
    names = tf.gather(tf.constant(labels.names), tf.where(known, places, tf.zeros_like(places)))
    return tf.where(known, names, tf.constant(""))
