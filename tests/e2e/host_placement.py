"""What test_many_hosts.py asks of its processes before they train: which rows each holds, and where they are placed."""

import jax
import numpy as np

from trainer.batch_spec import BatchAxes, batch_struct
from trainer.mesh import Placement

ROWS = 16


def placed(devices, model):
    """The host's ranges of rows; the shape of the global batch, and what each device holds, also of an array with
    rows last; the shape of a batch of half the host's rows, or that it is refused.

    A batch is the numbers of its rows. Nothing is compiled."""
    placement = Placement.of([jax.devices()[i] for i in devices], {"model": model}, BatchAxes({"last": 1}))
    rows = placement.hosts(ROWS).rows
    numbers = np.array([row for part in rows for row in part], np.int32)
    batch = {"row": numbers, "last": np.stack([numbers, -numbers])}
    struct = placement.global_struct(batch_struct(batch), ROWS)
    placed = placement.place(batch, struct)
    parts = {
        name: {jax.devices().index(shard.device): shard.data.tolist() for shard in array.addressable_shards}
        for name, array in placed.items()
    }
    try:
        half = placement.place({"row": numbers[: len(numbers) // 2]}, {"row": struct["row"]})["row"].shape
    except ValueError:
        half = "refused"
    own = {"rows": [[part.start, part.stop] for part in rows], "half": half, "shape": placed["row"].shape}
    return own | {"parts": parts["row"], "last": parts["last"]}
