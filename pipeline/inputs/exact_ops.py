"""Which programs of tf.data have states that are exact: those of listed operations only.

Policies of a program's options are not asked, because they only hide state. tf_iterator uses it."""

import itertools
import math
import re
from collections.abc import Iterator
from typing import Any

from pipeline.errors import InputError
from pipeline.inputs import iterator_states
from pipeline.sizes import format_bytes
from pipeline.tf_quiet import tf

OURS = "infeed_checked"  # the name of the Python function of `examples`, which has no state

# tests/pipeline/inputs/test_iterator_states.py proves the families.
_EXACT = re.compile(
    "(AssertCardinality|Batch|Concatenate|DirectedInterleave|Filter|Finalize|FixedLengthRecord"
    "|FlatMap|GroupByWindow|IgnoreErrors|Interleave|Map|MapAndBatch|Model|Optimize|Options|PaddedBatch"
    "|ParallelBatch|ParallelFilter|ParallelInterleave|ParallelMap|Prefetch|Range|Repeat|Rewrite"
    "|Scan|Shard|Skip|SparseTensorSlice|TFRecord|Take|TakeWhile|Tensor|TensorSlice|TextLine"
    "|Unbatch|Window|Zip)Dataset(V[234])?"
)
# The first input that is a seed. Two seeds of 0 are drawn anew.
_SEEDED = {
    "ShuffleDatasetV3": 2,
    "ShuffleAndRepeatDatasetV2": 2,
    "RandomDataset": 0,
    "RandomDatasetV2": 0,
}
_BUFFERED = ("ShuffleDatasetV3", "ShuffleAndRepeatDatasetV2", "PrefetchDataset")
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


def check(graph: Any, element_bytes: int) -> None:
    """InputError, with the reason, if a state of this program is not exact, or too large.

    element_bytes: for buffers of elements whose shape is not known. A shuffle counts as full. Not
    known beforehand is what a cache, a window or a group will hold: `save` measures that."""
    constants = {node.name: node.attr["value"].tensor for node in graph.node if node.op == "Const"}
    functions = {each.signature.name for each in graph.library.function}
    buffers = 0

    def value(node: Any, at: int) -> Any:
        tensor = constants.get(node.input[at]) if at < len(node.input) else None
        return None if tensor is None else tf.make_ndarray(tensor).item()

    for node in graph.node:
        if node.op in _SEEDED:
            seeds = [value(node, _SEEDED[node.op] + each) for each in (0, 1)]
            if not any(seeds):
                raise InputError(f"{node.op} has no seed")
        if node.op == "CacheDatasetV2" and value(node, 1) != b"":
            raise InputError("it has a cache in files, which may be gone when it resumes")
        if node.op in _BUFFERED:
            # Autotuned prefetches grow to few elements.
            count = value(node, 1) or 0
            buffers += (count if count > 0 else 16) * _bytes_of(node, element_bytes)
    check_bytes("its buffers hold up to", buffers)
    # Functions may have neither shuffles nor caches of their own, which tf.data does not save.
    inside = (node for each in graph.library.function for node in each.node_def)
    outside = (node for node in graph.node if node.op not in (*_SEEDED, "CacheDatasetV2"))
    for node in (*outside, *inside):
        if _unordered(node):
            raise InputError("it says deterministic=False: its order is another one each time")
        if node.op not in functions and not _is_exact(node):
            raise InputError(f"it has {node.op}, whose state tf.data may not save exactly")


def _unordered(node: Any) -> bool:
    if node.op == "OptionsDataset":
        from tensorflow.core.framework import dataset_options_pb2

        messages: Any = dataset_options_pb2
        options = messages.Options.FromString(node.attr["serialized_options"].s)
        return bool(options.WhichOneof("optional_deterministic")) and not options.deterministic
    attribute = node.attr.get("deterministic")
    return attribute is not None and attribute.s == b"false"


def _is_exact(node: Any) -> bool:
    if _EXACT.fullmatch(node.op) or node.op in _STATELESS:
        return True
    if "PyFunc" in node.op:
        return OURS in node.name
    from tensorflow.python.framework import op_def_registry

    known = op_def_registry.get(node.op)
    return known is not None and not known.is_stateful and "Dataset" not in node.op


def _bytes_of(node: Any, element_bytes: int) -> int:
    types = node.attr["output_types"].list.type
    total = 0
    for shape, kind in zip(node.attr["output_shapes"].list.shape, types, strict=False):
        sizes = [each.size for each in shape.dim]
        dtype = tf.dtypes.as_dtype(kind)
        if shape.unknown_rank or -1 in sizes or not dtype.is_numpy_compatible or dtype == tf.string:
            total += element_bytes
        else:
            total += math.prod(sizes) * dtype.size
    return total
