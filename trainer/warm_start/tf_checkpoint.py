"""The variables of a TensorFlow checkpoint, without those of its optimizer. Only this module imports TensorFlow."""

from collections import deque
from typing import Any

import numpy as np

from pipeline.errors import CheckpointError
from pipeline.installing import how_to_install
from trainer.checkpointing.failures import reason
from trainer.warm_start.matching import Array
from trainer.warm_start.weights import Weights

__all__ = ["tf_weights"]

GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
NOT_THE_MODELS = ("optimizer", "save_counter", "global_step")


def tf_weights(path: str) -> Weights:
    """The variables by their own names, such as "sequential/dense/kernel" in Keras.

    If two names are equal, all are named by the attributes that lead to them: "model/_operations/1/_kernel".
    path: as tf.train.Checkpoint.save returns it, or a directory, for its newest checkpoint."""
    try:
        import tensorflow as tf
    except ImportError as error:
        raise CheckpointError(f"{path} is a TensorFlow checkpoint: {how_to_install('read')}") from error
    try:
        reader = tf.train.load_checkpoint(path)
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        keys = _of_objects(reader.get_tensor(GRAPH)) if GRAPH in shapes else {name: name for name in shapes}
    except Exception as error:  # of TensorFlow
        raise CheckpointError(f"cannot read the TensorFlow checkpoint {path}: {reason(error)}") from error
    keys = {name: key for name, key in keys.items() if name not in NOT_THE_MODELS}

    def read(name: str) -> np.ndarray:
        try:
            return reader.get_tensor(keys[name])
        except Exception as error:
            raise CheckpointError(f"cannot read {name} of {path}: {reason(error)}") from error

    arrays = {name: Array(tuple(shapes[key]), dtypes[key].name) for name, key in keys.items()}
    return Weights(path, arrays, read)


def _of_objects(serialized: bytes) -> dict[str, str]:
    """The name of each variable that a path leads to without an optimizer -> its key in the checkpoint.

    The keys themselves will not do: a compiled Keras model has its weights under optimizer/_trainable_variables."""
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    nodes: Any = trackable_object_graph_pb2.TrackableObjectGraph.FromString(serialized).nodes  # pyright: ignore
    variables: dict[str, Any] = {}
    seen, ahead = {0}, deque([(0, "")])
    while ahead:
        node, path = ahead.popleft()
        for attribute in nodes[node].attributes:
            if attribute.name == "VARIABLE_VALUE":
                variables[path] = attribute
        for child in nodes[node].children:
            if child.node_id not in seen and child.local_name not in NOT_THE_MODELS:
                seen.add(child.node_id)
                ahead.append((child.node_id, f"{path}/{child.local_name}".lstrip("/")))
    names = [each.full_name for each in variables.values()]
    distinct = all(names) and len(set(names)) == len(names)
    return {each.full_name if distinct else path: each.checkpoint_key for path, each in variables.items()}
