"""Begins a run with the arrays of a checkpoint: checks them against the model, then replaces its
fresh ones.

Whatever wrote it, infeed, Orbax, safetensors or TensorFlow: its arrays have names here."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from pipeline.errors import CheckpointError
from pipeline.logs import logger
from pipeline.packages import how_to_install
from pipeline.storage.schemes import open_storage
from trainer.checkpointing import warm_start_finding as finding
from trainer.checkpointing.contents import check_tree
from trainer.checkpointing.mappings import MAPPINGS
from trainer.checkpointing.orbax_paths import as_checkpoint_error, orbax_path
from trainer.checkpointing.warm_start import WarmStart
from trainer.checkpointing.weights import Weights, as_ours, layouts_of, of_infeed, recognized
from trainer.mesh.batch_spec import named_leaves
from trainer.mesh.placement import Placement
from trainer.task import Task, TrainState

HEAD = "head/"  # how the names of the arrays begin that know classes, in infeed's models
HEAD_BIAS = f"{HEAD}bias"
OF_NNX = "/value"  # ends the name of each array in a saved nnx.State
GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # in a checkpoint of TensorFlow
NOT_THE_MODELS = ("optimizer", "save_counter", "global_step")

log = logger("trainer")


def open_weights(path: str, ema: bool = True) -> Weights:
    """Lists the arrays of the checkpoint at a path. Reads none of them yet. ema: see
    WarmStart.init_ema.

    Raises OptionError for a path without a checkpoint, CheckpointError for one that cannot be
    read."""
    checkpoint = finding.find_checkpoint(path)
    match checkpoint.format:
        case "infeed":
            return of_infeed(checkpoint.path, ema)
        case "orbax":
            return _of_orbax(checkpoint.path)
        case "safetensors":
            return _of_safetensors(checkpoint.path, checkpoint.files)
        case "tensorflow":
            return _of_tensorflow(checkpoint.path)


def _of_orbax(path: str) -> Weights:
    """The weights of any checkpoint that Orbax's StandardCheckpointer or PyTreeCheckpointer wrote.

    Names are paths joined with "/", without the "value" that ends each path of an nnx.State."""
    check_tree(open_storage(path), path)
    handler = ocp.PyTreeCheckpointHandler()
    where = orbax_path(path)
    with as_checkpoint_error("read the checkpoint", path), ocp.Checkpointer(handler) as reader:
        tree: Any = reader.metadata(where).item_metadata.tree  # pyright: ignore
    described = {name: leaf for name, leaf in named_leaves(tree).items() if hasattr(leaf, "shape")}
    suffix = OF_NNX if described and all(name.endswith(OF_NNX) for name in described) else ""
    originals = {name.removesuffix(suffix): name for name in described}
    leaves, structure = jax.tree.flatten(tree)
    order = list(named_leaves(tree))
    as_numpy = structure.unflatten([ocp.RestoreArgs(restore_type=np.ndarray)] * len(leaves))

    def read(name: str) -> np.ndarray:
        chosen = order.index(originals[name])
        item = structure.unflatten(
            [leaf if n == chosen else ocp.PLACEHOLDER for n, leaf in enumerate(leaves)]
        )
        args: Any = ocp.args.PyTreeRestore(item=item, restore_args=as_numpy)  # pyright: ignore[reportCallIssue]
        with ocp.Checkpointer(handler) as reader:
            return jax.tree.leaves(reader.restore(where, args=args))[chosen]

    arrays = {
        name: finding.Array(tuple(described[each].shape), str(np.dtype(described[each].dtype)))
        for name, each in originals.items()
    }
    return Weights(path, arrays, read)


def _of_safetensors(path: str, files: Sequence[str]) -> Weights:
    """The arrays of all files. Raises CheckpointError for a damaged file, and for a name that two
    of them have."""
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise CheckpointError(
            f"{path} needs the package safetensors: {how_to_install('train')}"
        ) from error
    arrays: dict[str, finding.Array] = {}
    places: dict[str, str] = {}
    for file in files:
        advice = " It is truncated, or no file of safetensors: download or save it again."
        with (
            as_checkpoint_error("read", file, advice=advice),
            safe_open(file, framework="np") as opened,
        ):
            for name in list(opened.keys()):
                if name in places:
                    raise CheckpointError(
                        f"both {places[name]} and {file} have an array {name!r}. Give one of the "
                        "files."
                    )
                places[name] = file
                part = opened.get_slice(name)
                arrays[name] = finding.Array(tuple(part.get_shape()), part.get_dtype())

    def read(name: str) -> np.ndarray:
        with safe_open(places[name], framework="np") as opened:
            return opened.get_tensor(name)

    return Weights(path, arrays, read)


def _of_tensorflow(path: str) -> Weights:
    """The variables without those of the optimizer, by their own names, such as
    "sequential/dense/kernel" in Keras.

    If two names are equal, all are named by the attributes that lead to them:
    "model/_operations/1/_kernel". path: as tf.train.Checkpoint.save returns it, or a directory, for
    its newest checkpoint."""
    try:
        import tensorflow as tf
    except ImportError as error:
        raise CheckpointError(
            f"{path} is a TensorFlow checkpoint: {how_to_install('tf')}"
        ) from error
    pattern = "[" in path or "\\" in path
    advice = " TensorFlow takes [ and \\ for patterns: copy it elsewhere." if pattern else ""
    with as_checkpoint_error("read the TensorFlow checkpoint", path, advice=advice):
        reader = tf.train.load_checkpoint(path)
        shapes = reader.get_variable_to_shape_map()
        dtypes = reader.get_variable_to_dtype_map()
        keys = {name: name for name in shapes}
        if GRAPH in shapes:
            keys = _of_objects(reader.get_tensor(GRAPH))
    arrays = {
        name: finding.Array(tuple(shapes[key]), dtypes[key].name)
        for name, key in keys.items()
        if name not in NOT_THE_MODELS
    }
    return Weights(path, arrays, lambda name: reader.get_tensor(keys[name]))


def _of_objects(serialized: bytes) -> dict[str, str]:
    """The name of each variable that a path leads to without an optimizer -> its key in the
    checkpoint.

    The keys themselves will not do: a compiled Keras model has its weights under
    optimizer/_trainable_variables."""
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    nodes: Any = trackable_object_graph_pb2.TrackableObjectGraph.FromString(serialized).nodes  # pyright: ignore
    variables: dict[str, Any] = {}
    seen = {0}
    ahead = deque([(0, "")])
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
    return {
        each.full_name if distinct else path: each.checkpoint_key
        for path, each in variables.items()
    }


class Loading(NamedTuple):
    """The arrays to load. names: the model's -> those in the checkpoint."""

    weights: Weights
    names: dict[str, str]
    config: WarmStart

    def into(self, state: TrainState, task: Task, placement: Placement) -> TrainState:
        """The fresh state with the loaded arrays, in its dtypes and shardings.

        Averages begin as the loaded parameters, and the optimizer with its first state for them."""
        params = named_leaves(state.variables.params)
        averages = named_leaves(state.ema)
        replaced: dict[int, Any] = {}
        leaves = finding.model_names(params, named_leaves(state.variables.extra))
        for name, saved_name in self.names.items():
            with as_checkpoint_error("read", f"{saved_name} of {self.weights.path}"):
                numbers = self.weights.read(saved_name)
            if finding.from_torch(name, numbers.shape, self.config):
                numbers = np.moveaxis(numbers, (0, 1), (-1, -2))
            numbers = numbers.astype(leaves[name].dtype)
            for leaf in (leaves[name], averages.get(name)):
                if leaf is not None:
                    replaced[id(leaf)] = _placed(numbers, leaf)

        variables, ema = jax.tree.map(
            lambda leaf: replaced.get(id(leaf), leaf), (state.variables, state.ema)
        )
        shardings = jax.tree.map(lambda leaf: leaf.sharding, state.optimizer)
        begin = jax.jit(
            task.optimizer.init, out_shardings=shardings, compiler_options=placement.runs_once
        )
        return state._replace(variables=variables, optimizer=begin(variables.params), ema=ema)


def plan_loading(config: WarmStart, like: TrainState, new_head: bool = False) -> Loading:
    """What to load into a state like this. Reads no array yet; logs the arrays that are not loaded.

    new_head: leave out the arrays head/*, because the classes differ. Raises OptionError for a path
    or pattern without a match, CheckpointError for arrays that do not fit."""
    assert config.init_from is not None
    weights = open_weights(config.init_from, config.init_ema)
    leaves = finding.model_names(
        named_leaves(like.variables.params), named_leaves(like.variables.extra)
    )
    model = {name: finding.Array(leaf.shape, str(leaf.dtype)) for name, leaf in leaves.items()}
    mapping = config.init_mapping
    if not (config.init_rename or config.init_torch or model.keys() & weights.arrays.keys()):
        mapping = mapping or recognized(weights.arrays.keys(), model)
    layouts = ", ".join(each.name for each in layouts_of(model)) or "none"
    remedy = f"Recognized for this model: {layouts}. Rename others with init_rename"
    why = "its classes differ from those of the data"
    if mapping:
        theirs = next((each for each in MAPPINGS if each.names_all(weights.arrays)), mapping)
        remedy = f"These are weights of {theirs.name}: choose the model of their sizes"
        weights = as_ours(weights, mapping, model)
        log.info("init_from %s: %s", weights.path, mapping.name)
        there, here = (arrays.get(HEAD_BIAS) for arrays in (weights.arrays, model))
        if here and (there is None or there.shape != here.shape):
            new_head, why = True, f"its {HEAD_BIAS} is {there or 'missing'}, the model's {here}"
    if new_head and any(name.startswith(HEAD) for name in model):
        log.info("init_from %s: %s, so the head is new", weights.path, why)
        config = replace(config, init_exclude=(*config.init_exclude, f"{HEAD}*"))
    rows = finding.match(model, weights.arrays, config)
    finding.check_rows(weights.path, rows, config, remedy)
    for line in finding.described_rows(rows):
        log.info("init_from %s: %s", weights.path, line)
    return Loading(
        weights,
        {row.name: row.theirs for row in rows if row.status == "loaded" and row.theirs is not None},
        config,
    )


def _placed(numbers: np.ndarray, like: jax.Array) -> jax.Array:
    numbers = numbers.astype(like.dtype)
    return jax.make_array_from_callback(like.shape, like.sharding, lambda index: numbers[index])
