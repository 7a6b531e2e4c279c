"""A checkpoint is plain Orbax: a process without infeed restores every item of it, in every public way."""

import json
import subprocess
import sys

import numpy as np
import pytest

from trainer.checkpointing.manager import CheckpointManager
from trainer.mesh.batch_spec import named_leaves

# infeed's packages are hidden from it.
PROGRAM = """
import json, sys
from importlib.abc import MetaPathFinder

class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pipeline", "trainer", "converters", "beam_jobs"):
            raise ImportError(name)

sys.meta_path.insert(0, Hidden())
import jax, numpy as np
jax.config.update("jax_num_cpu_devices", 4)  # as in the run: Orbax puts each array where it was
import orbax.checkpoint as ocp
from orbax.checkpoint import v1

directory, step, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
path = f"{directory}/{step}"

def by_manager():
    with ocp.CheckpointManager(directory) as manager:
        return manager.restore(step)

def by_checkpointer():
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as reader:
        args = {"state": ocp.args.StandardRestore(), "contents": ocp.args.JsonRestore()}
        return reader.restore(path, ocp.args.Composite(**args))

def by_item():
    with ocp.StandardCheckpointer() as reader:
        return {"state": reader.restore(f"{path}/state"), "contents": json.load(open(f"{path}/contents/metadata"))}

for way in (by_manager, by_checkpointer, by_item, lambda: v1.load_checkpointables(path)):
    items = dict(way())
    names, leaves = zip(*jax.tree.leaves_with_path(items["state"]))
    np.savez(f"{out}/{way.__name__}.npz", **{jax.tree_util.keystr(name): leaf for name, leaf in zip(names, leaves)})
    with open(f"{out}/{way.__name__}.json", "w") as file:
        json.dump(items["contents"], file)
"""


@pytest.fixture(scope="module")
def read_elsewhere():
    """read_elsewhere(directory, step, out): for each way, writes the arrays and the contents to the directory out."""

    def read(*arguments):
        command = [sys.executable, "-P", "-c", PROGRAM, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    return read


def test_a_process_without_infeed_restores_every_item(
    config, save, state_at, read_elsewhere, tmp_path
):
    save(config(), 10)
    manager = CheckpointManager(config())
    expected = [
        np.asarray(leaf) for leaf in named_leaves(manager.restore(10, state_at()).state).values()
    ]
    read_elsewhere(manager.directory, 10, tmp_path)
    contents = [json.loads(file.read_text()) for file in tmp_path.glob("*.json")]
    assert len(contents) == 4
    assert all(page == contents[0] and page["step"] == 10 for page in contents)
    for file in tmp_path.glob("*.npz"):
        assert sorted(array.tobytes() for array in np.load(file).values()) == sorted(
            a.tobytes() for a in expected
        )
