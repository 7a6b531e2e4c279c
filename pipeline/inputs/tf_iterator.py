"""An iterator over a tf.data.Dataset that can be saved, and what the graph of a program tells.

pipeline.tf_data makes it."""

import itertools
import re
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from pipeline.errors import EvaluationError, InputError
from pipeline.inputs.iterator_states import MOST_BYTES
from pipeline.sizes import format_bytes
from pipeline.tf_quiet import tf

_IGNORE = 1  # a state that is not the dataset's, such as that of a random generator
# the attributes that number what the process has made
_NUMBERED = ("metadata", "token", "shared_name")
_SEEDS = {"ShuffleDatasetV3": 2, "RandomDataset": 0, "RandomDatasetV2": 0}  # which input is first


class TfIterator(Iterator[Any]):
    """The batches of a dataset, in NumPy; a SavableIterator. steps: how many there must be, if that
    is known."""

    def __init__(self, dataset: tf.data.Dataset, steps: int | None = None) -> None:
        self._dataset = dataset
        self._steps = steps
        self._iterator = dataset.as_numpy_iterator()

    def __next__(self) -> Any:
        try:
            batch = next(self._iterator)
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

    @property
    def graph(self) -> str:
        """A hash of the program: its functions, numbers, texts, files and seeds, and the version of
        TensorFlow. Unlike Dataset.fingerprint, it knows seeds, and is the same in each process."""
        return self._known[0]

    @property
    def obstacle(self) -> str:
        """A saved state does not tell the order of what is unordered, nor later seeds that are
        drawn: a restored iterator would silently deliver other batches."""
        return self._known[1]

    @cached_property
    def _known(self) -> tuple[str, str]:
        graph = _graph(self._dataset)
        unordered = self._dataset.options().deterministic is False
        obstacle = _obstacle(graph, unordered)
        return f"{_hash(graph)} of TensorFlow {tf.__version__}", obstacle

    def again(self) -> "TfIterator":
        """An iterator of the same dataset, made anew: two of one dataset share the generators of
        its shuffles, so one would change what the other delivers."""
        graph = _graph(self._dataset)
        for node in (node for node in _every_node(graph) if node.op == "Const"):
            for handle in node.attr["value"].tensor.resource_handle_val:
                handle.name += f"-{secrets.token_hex(8)}"
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
        dataset = tf.data.experimental.from_variant(variant, self._dataset.element_spec)
        return TfIterator(dataset)

    def save(self) -> bytes:
        """See SavableIterator. Needs as much of the disk of temporary files for a moment."""
        with _files("saved") as directory:
            tf.train.Checkpoint(iterator=self._iterator).write(f"{directory}/state")
            data, index = (path.read_bytes() for path in sorted(directory.iterdir()))
        return b"".join((len(index).to_bytes(8, "little"), index, data))

    def restore(self, data: bytes) -> None:
        """See SavableIterator."""
        end = 8 + int.from_bytes(data[:8], "little")
        with _files("restored") as directory:
            (directory / "state.index").write_bytes(data[8:end])
            (directory / "state.data-00000-of-00001").write_bytes(data[end:])
            tf.train.Checkpoint(iterator=self._iterator).read(f"{directory}/state")


@contextmanager
def _files(done: str) -> Iterator[Path]:
    """A temporary directory; errors become an InputError."""
    try:
        with tempfile.TemporaryDirectory(prefix="infeed-") as directory:
            yield Path(directory)
    except (tf.errors.OpError, OSError) as error:
        raise InputError(f"its state cannot be {done}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0][:500]


def _graph(dataset: tf.data.Dataset) -> Any:
    """As a GraphDef. InputError if there is none, as beyond 2 GiB, or if it would take long."""
    variant = tf.data.experimental.to_variant(dataset)
    try:
        data: Any = tf.raw_ops.DatasetToGraphV2(
            input_dataset=variant, external_state_policy=_IGNORE
        )
    except tf.errors.OpError as error:
        raise InputError(f"its graph cannot be read: {_first_line(error)}") from error
    if not 0 < len(text := data.numpy()) <= MOST_BYTES:
        raise InputError(
            f"its graph, which has the arrays of from_tensor_slices, is more than "
            f"{format_bytes(MOST_BYTES)}. Read them from files"
        )
    return tf.compat.v1.GraphDef.FromString(text)


def _every_node(graph: Any) -> Iterator[Any]:
    """Those of its functions, too."""
    return itertools.chain(graph.node, *(each.node_def for each in graph.library.function))


def _obstacle(graph: Any, unordered: bool) -> str:
    """See TfIterator.obstacle."""
    attributes = (node.attr.get("deterministic") for node in _every_node(graph))
    if unordered or any(each and each.s == b"false" for each in attributes):
        return "it says deterministic=False, so that its order is another one each time"
    constants = {node.name: node.attr["value"] for node in graph.node if node.op == "Const"}
    for node in graph.node:
        begin = _SEEDS.get(node.op)
        if begin is not None:
            seeds = (constants[name].tensor for name in node.input[begin : begin + 2])
            if not any(map(tf.make_ndarray, seeds)):
                return "a shuffle or a choice between datasets has no seed"
    return ""


def _hash(graph: Any) -> str:
    """Of the graph without the names and numbers that depend on what else the process has made.
    Changes the graph."""
    functions = sorted(graph.library.function, key=lambda each: _number(each.signature.name))
    names = {each.signature.name: f"function {i}" for i, each in enumerate(functions)}
    nodes = {node.name: f"node {i}" for i, node in enumerate(graph.node)}
    for node in graph.node:  # names of lookup tables have random numbers
        node.name = nodes[node.name]
        node.input[:] = (re.sub("[^:^]+", lambda at: nodes[at[0]], i, count=1) for i in node.input)
    for node in _every_node(graph):
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
