"""An iterator over a tf.data.Dataset that can be saved, and what the graph of a program tells.

pipeline.tf_data makes it."""

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np

from pipeline.errors import EvaluationError, InputError
from pipeline.inputs.exact_ops import check, check_bytes, every_node
from pipeline.tf_quiet import tf

_IGNORE = 1  # a state that is not the dataset's, such as that of a random generator
# the attributes that number what the process has made
_NUMBERED = ("metadata", "token", "shared_name")
_INDEX, _DATA = "state.index", "state.data-00000-of-00001"


class TfIterator(Iterator[Any]):
    """The batches of a dataset, in NumPy; a SavableIterator. steps: how many there must be, if that
    is known."""

    def __init__(self, dataset: tf.data.Dataset, steps: int | None = None) -> None:
        self._dataset = dataset
        self._steps = steps
        self._iterator = dataset.as_numpy_iterator()
        self._element_bytes = 0  # of a row of the newest batch

    def __next__(self) -> Any:
        try:
            batch = next(self._iterator)
            if not self._element_bytes:
                arrays = [np.asarray(leaf) for leaf in tf.nest.flatten(batch)]
                self._element_bytes = sum(a.nbytes // max(len(a), 1) for a in arrays if a.ndim)
            if self._steps is not None:
                self._steps -= 1
                if not self._steps:
                    next(self._iterator, None)  # tf.data checks a stated cardinality at the end
            return batch
        except tf.errors.FailedPreconditionError as e:
            if "expected to contain" not in str(e):
                raise
            raise EvaluationError(
                "the tf.data program has another number of examples than its assert_cardinality "
                "states. State what it has, or nothing: then it is not checked."
            ) from e

    @cached_property
    def graph(self) -> str:
        """A hash of the program: its functions, numbers, texts, files and seeds, and the version of
        TensorFlow. Unlike Dataset.fingerprint, it knows seeds, and is the same in each process."""
        return f"{_hash(_graph(self._dataset))} of TensorFlow {tf.__version__}"

    @cached_property
    def _checked(self) -> None:
        check(_graph(self._dataset), self._element_bytes)

    def again(self) -> "TfIterator":
        """An iterator of the same dataset, made anew: two of one dataset share the generators of
        its shuffles, so one would change what the other delivers."""
        graph = _graph(self._dataset)
        suffix = f"-{secrets.token_hex(8)}"  # one: parts that share a generator go on sharing it
        for node in (node for node in every_node(graph) if node.op == "Const"):
            for handle in node.attr["value"].tensor.resource_handle_val:
                handle.name += suffix
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
        dataset = tf.data.experimental.from_variant(variant, self._dataset.element_spec)
        return TfIterator(dataset)

    def save(self) -> bytes:
        """See SavableIterator. Decides from the graph alone, before memory is needed."""
        self._checked  # noqa: B018 - once
        with _files("saved") as directory:
            tf.train.Checkpoint(iterator=self._iterator).write(f"{directory}/state")
            paths = [f"{directory}/{name}" for name in (_INDEX, _DATA)]
            check_bytes("its state has", sum(tf.io.gfile.stat(path).length for path in paths))
            index, data = (tf.io.gfile.GFile(path, "rb").read() for path in paths)
        return b"".join((len(index).to_bytes(8, "little"), index, data))

    def restore(self, data: bytes) -> None:
        """See SavableIterator."""
        end = 8 + int.from_bytes(data[:8], "little")
        with _files("restored") as directory:
            for name, part in ((_INDEX, data[8:end]), (_DATA, data[end:])):
                with tf.io.gfile.GFile(f"{directory}/{name}", "wb") as file:
                    file.write(part)
            tf.train.Checkpoint(iterator=self._iterator).read(f"{directory}/state")


@contextmanager
def _files(done: str) -> Iterator[str]:
    """A directory in memory, so that a killed process leaves nothing on a disk."""
    directory = f"ram://infeed-{secrets.token_hex(8)}"
    tf.io.gfile.makedirs(directory)
    try:
        yield directory
    except tf.errors.OpError as error:
        raise InputError(f"its state cannot be {done}: {_first_line(error)}") from error
    finally:
        tf.io.gfile.rmtree(directory)


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0][:500]


def _graph(dataset: tf.data.Dataset) -> Any:
    """As a GraphDef. InputError if there is none, as beyond 2 GiB, or if it would take long."""
    check_bytes("its from_tensor_slices has", _array_bytes(dataset))
    variant = tf.data.experimental.to_variant(dataset)
    try:
        data: Any = tf.raw_ops.DatasetToGraphV2(
            input_dataset=variant, external_state_policy=_IGNORE
        )
    except tf.errors.OpError as error:
        raise InputError(f"its graph cannot be read: {_first_line(error)}") from error
    # Empty above 2 GiB. Arrays that a function captures are counted only here.
    if not (text := data.numpy()):
        raise InputError(
            "its graph, which has its arrays, is more than 2 GiB. Read them from files"
        )
    check_bytes("its graph has", len(text))
    return tf.compat.v1.GraphDef.FromString(text)


def _array_bytes(dataset: Any) -> int:
    """Of the arrays in a dataset, which are copied when its graph is made. Private names of
    TensorFlow; 0 where a version has none of them."""
    tensors = getattr(dataset, "_tensors", ())
    own = sum((each.shape.num_elements() or 0) * each.dtype.size for each in tensors)
    return own + sum(map(_array_bytes, getattr(dataset, "_inputs", tuple)()))


def _hash(graph: Any) -> str:
    """Of the graph without the names and numbers that depend on what else the process has made.
    Changes the graph."""
    functions = sorted(graph.library.function, key=lambda each: _number(each.signature.name))
    names = {each.signature.name: f"function {i}" for i, each in enumerate(functions)}
    nodes = {node.name: f"node {i}" for i, node in enumerate(graph.node)}
    for node in graph.node:  # names of lookup tables have random numbers
        node.name = nodes[node.name]
        node.input[:] = (re.sub("[^:^]+", lambda at: nodes[at[0]], i, count=1) for i in node.input)
    for node in every_node(graph):
        for key, attr in node.attr.items():
            kind = attr.WhichOneof("value")
            for reference in (attr.func, *attr.list.func) if kind in ("func", "list") else ():
                if reference.name in names:
                    reference.name = names[reference.name]
            if key in _NUMBERED:
                attr.Clear()
            elif kind == "tensor":
                del attr.tensor.resource_handle_val[:]
    for function in functions:
        function.signature.name = names[function.signature.name]
    hashed = sha256()
    for part in (*graph.node, *functions):
        hashed.update(part.SerializeToString(deterministic=True))
    return hashed.hexdigest()


def _number(function: str) -> int:
    """The number at the end of its name: functions count up in the order in which they are
    traced."""
    return int(re.sub(r".*\D", "", function) or 0)
