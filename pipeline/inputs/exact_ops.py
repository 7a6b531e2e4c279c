"""Which programs of tf.data have states that are exact: those of listed operations only.

A program's policy for external state is not asked, because it only hides that state. tf_iterator
uses it."""

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.errors import InputError
from pipeline.inputs import iterator_states
from pipeline.sizes import format_bytes
from pipeline.tf_quiet import tf

OURS = "infeed_checked"  # the name of the Python function of `examples`, which has no state

# Datasets; programs of TRUSTED in tests/pipeline/inputs/test_iterator_states.py have all of them.
EXACT = re.compile(
    "(AssertCardinality|Concatenate|Filter|FlatMap|GroupByWindow|IgnoreErrors"
    "|Interleave|MapAndBatch|Map|ParallelBatch|Prefetch|Range|Repeat|Rewrite|Scan|Shard|Skip|TFRecord"
    "|TakeWhile|Take|TensorSlice|Tensor|TextLine|Unbatch|Window|Zip)Dataset"
    "|(Batch|FixedLengthRecord|PaddedBatch|ParallelMap|TFRecord)DatasetV2"
    "|(ParallelInterleave)DatasetV4"
)
# The first input that is a seed. Two seeds of 0 are drawn anew.
SEEDED = {"ShuffleDatasetV3": 2, "RandomDataset": 0, "RandomDatasetV2": 0}
MIXTURE = "DirectedInterleaveDataset"
# Exact only outside of functions: tf.data does not save their state there, or it is not checked.
OUTSIDE = {*SEEDED, MIXTURE, "CacheDatasetV2", "OptionsDataset"}
# As long as their input.
_AS_LONG = {"MapDataset", "ParallelMapDatasetV2", "PrefetchDataset", "ShuffleDatasetV3"}
_BUFFERED = ("ShuffleDatasetV3", "PrefetchDataset")
# With these, a restored iterator has another order, hangs, or is slow.
INEXACT = {"deterministic": False, "experimental_slack": True}
INEXACT["experimental_symbolic_checkpoint"] = True
# Marked stateful by TensorFlow, but without a state that changes.
_STATELESS = {"_Retval", "_Arg", "Assert", "If", "While", "StatefulPartitionedCall"}
_STATELESS |= {"HashTableV2", "LookupTableFindV2", "LookupTableSizeV2"}
_STATELESS |= {"InitializeTableV2", "LookupTableImportV2"}


def every_node(graph: Any) -> Iterator[Any]:
    """Those of its functions, too."""
    return itertools.chain(graph.node, *(each.node_def for each in graph.library.function))


def check_bytes(what: str, size: int) -> None:
    """InputError if a state of that size is not saved."""
    if size > iterator_states.MOST_BYTES:
        raise InputError(
            f"{what} {format_bytes(size)}, more than {format_bytes(iterator_states.MOST_BYTES)}. "
            "Read large arrays from files, make buffers smaller, or shuffle before decoding"
        )


def check(dataset: tf.data.Dataset, graph: Any) -> None:
    """InputError, with the reason, if a state of this dataset of batches is not exact, or too
    large. graph: of the dataset."""
    for name, value in INEXACT.items():
        if getattr(dataset.options(), name) is value:
            raise InputError(f"its options say {name}={value}, with which no state is exact")
    constants = {node.name: node.attr["value"].tensor for node in graph.node if node.op == "Const"}
    _check_buffers(graph, constants, dataset.element_spec)
    _check_mixtures(graph, constants)
    for node in (node for node in graph.node if node.op in SEEDED):
        if not any(_constant(constants, node, SEEDED[node.op] + each) for each in (0, 1)):
            raise InputError(f"{node.op} has no seed")
    # Iterators of one shuffle, or cache, share what these names find; restored ones do not.
    shared = [one.name for tensor in constants.values() for one in tensor.resource_handle_val]
    if len(set(shared)) < len(shared):
        raise InputError("it uses the same shuffle or cache twice. Give each part one of its own")
    functions = {each.signature.name for each in graph.library.function}
    inside = (node for each in graph.library.function for node in each.node_def)
    outside = (node for node in graph.node if node.op not in OUTSIDE)
    for node in (*outside, *inside):
        if node.attr["deterministic"].s == b"false":
            raise InputError("it says deterministic=False: its order differs each time")
        if node.op not in functions and not _is_exact(node):
            raise InputError(f"it has {node.op}, whose state tf.data may not save exactly")


def _check_buffers(graph: Any, constants: Mapping[str, Any], batch: Any) -> None:
    """A shuffle counts as full. Not known beforehand is what a cache, a window or a group will
    hold: `save` measures that. batch: its spec."""
    row_bytes = sum(
        leaf.shape[1:].num_elements() * leaf.dtype.size for leaf in tf.nest.flatten(batch)
    )
    buffers = 0
    for node in graph.node:
        if node.op == "CacheDatasetV2" and _constant(constants, node, 1):
            raise InputError("it has a cache in files, which may be gone when it resumes")
        if node.op in _BUFFERED:
            # Autotuned prefetches grow to few elements.
            count = _constant(constants, node, 1)
            buffers += (count if count > 0 else 16) * _bytes_of(node, row_bytes)
    check_bytes("its buffers hold up to", buffers)


def _check_mixtures(graph: Any, constants: Mapping[str, Any]) -> None:
    nodes = {node.name: node for node in graph.node}

    def is_endless(node: Any) -> bool:
        if node.op in _AS_LONG:
            return is_endless(nodes[node.input[0]])
        return node.op == "RepeatDataset" and _constant(constants, node, 1) < 0

    for node in (node for node in graph.node if node.op == MIXTURE):
        parts = (nodes[name] for name in node.input[1:])
        # One that is restored forgets which parts have ended, and draws from them forever.
        if not (node.attr["stop_on_empty_dataset"].b or all(map(is_endless, parts))):
            raise InputError(
                "it mixes datasets that may end. Repeat each, or give stop_on_empty_dataset=True"
            )


def _is_exact(node: Any) -> bool:
    if EXACT.fullmatch(node.op) or node.op in _STATELESS:
        return True
    if "PyFunc" in node.op:
        return OURS in node.name
    from tensorflow.python.framework import op_def_registry

    known = op_def_registry.get(node.op)
    return known is not None and not known.is_stateful and "Dataset" not in node.op


def _constant(constants: Mapping[str, Any], node: Any, at: int) -> Any:
    return tf.make_ndarray(constants[node.input[at]]).item()


def _bytes_of(node: Any, row_bytes: int) -> int:
    """Of an element. row_bytes: of a part whose size is not known."""
    total = 0
    shapes, types = node.attr["output_shapes"].list.shape, node.attr["output_types"].list.type
    for shape, kind in zip(shapes, types, strict=True):
        dtype = tf.as_dtype(kind)
        count = tf.TensorShape(shape).num_elements()
        known = count is not None and dtype.is_numpy_compatible and dtype != tf.string
        total += count * dtype.size if known else row_bytes
    return total
