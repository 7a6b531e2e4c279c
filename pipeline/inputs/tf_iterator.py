"""An iterator over a tf.data.Dataset that can be saved, and what the graph of a program tells.

pipeline.tf_data makes it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from typing import Any

from pipeline.errors import EvaluationError, InputError
from pipeline.inputs.exact_ops import check, check_bytes, every_node
from pipeline.tf_quiet import tf

# what to do about a state that is not the dataset's, such as that of a random generator
_IGNORE, _FAIL = 1, 2
# the attributes that number what the process has made
_NUMBERED = ("metadata", "token", "shared_name")


class TfIterator(Iterator[Any]):
    """The batches of a dataset, in NumPy; a SavableIterator. steps: how many there must be, if that
    is known."""

    def __init__(self, dataset: tf.data.Dataset, steps: int | None = None) -> None:
        self._dataset = dataset
        self._steps = steps
        self._iterator: Any = dataset.as_numpy_iterator()

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

    @cached_property
    def graph(self) -> str:
        """A hash of the program: its functions, numbers, texts, files and seeds, and the version of
        TensorFlow. Unlike Dataset.fingerprint, it knows seeds, and is the same in each process."""
        return f"{_hash(_graph(self._dataset))} of TensorFlow {tf.__version__}"

    @cached_property
    def _checked(self) -> None:
        check(self._dataset, _graph(self._dataset))

    def again(self) -> "TfIterator":
        """An iterator of the same dataset, made anew: two of one dataset share the generators of
        its shuffles, so one would change what the other delivers."""
        graph = _graph(self._dataset)
        for node in (node for node in every_node(graph) if node.op == "Const"):
            for handle in node.attr["value"].tensor.resource_handle_val:
                handle.name = ""  # of none that exists: the dataset makes its own
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
        dataset = tf.data.experimental.from_variant(variant, self._dataset.element_spec)
        return TfIterator(dataset)

    @property
    def _resource(self) -> Any:
        return self._iterator._iterator._iterator_resource

    def save(self) -> bytes:
        """See SavableIterator. Decides from the graph alone, before memory is needed."""
        self._checked  # noqa: B018 - once
        with _stated("its state cannot be saved"):
            state = tf.raw_ops.SerializeIterator(
                resource_handle=self._resource, external_state_policy=_FAIL
            )
            data: Any = tf.io.serialize_tensor(state)
        check_bytes("its state has", int(tf.strings.length(data)))
        return data.numpy()

    def restore(self, data: bytes) -> None:
        """See SavableIterator."""
        with _stated("its state cannot be restored"):
            state = tf.io.parse_tensor(data, tf.variant)
            tf.raw_ops.DeserializeIterator(resource_handle=self._resource, serialized=state)


@contextmanager
def _stated(what: str) -> Iterator[None]:
    """An InputError that says so in place of TensorFlow's, whose texts have many lines."""
    try:
        yield
    except tf.errors.OpError as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{what}: {reason[:500]}") from error


def _graph(dataset: tf.data.Dataset) -> Any:
    """As a GraphDef. InputError if there is none, as beyond 2 GiB, or if it would take long."""
    check_bytes("its from_tensor_slices has", _array_bytes(dataset))
    variant = tf.data.experimental.to_variant(dataset)
    with _stated("its graph cannot be read"):
        data: Any = tf.raw_ops.DatasetToGraphV2(
            input_dataset=variant, external_state_policy=_IGNORE
        )
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
