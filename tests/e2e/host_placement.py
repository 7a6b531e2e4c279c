"""What test_many_hosts.py asks of its processes before they train: which rows each holds, and where they are placed."""

import jax
import numpy as np

from trainer.batch_spec import batch_struct
from trainer.mesh import Placement

ROWS = 16


def placed(devices, model):
    """The host's ranges of rows; the shape of the global batch, and what each device holds; the shape of a batch of
    half the host's rows, or that it is refused.

    A batch is the numbers of its rows. Nothing is compiled."""
    placement = Placement.of([jax.devices()[i] for i in devices], model)
    rows = placement.hosts(ROWS).rows
    batch = {"row": np.array([row for part in rows for row in part], np.int32)}
    struct = placement.global_struct(batch_struct(batch), ROWS)
    array = placement.place(batch, struct)["row"]
    parts = {jax.devices().index(shard.device): shard.data.tolist() for shard in array.addressable_shards}
    try:
        half = placement.place({"row": batch["row"][: len(batch["row"]) // 2]}, struct)["row"].shape
    except ValueError:
        half = "refused"
    return {"rows": [[part.start, part.stop] for part in rows], "shape": array.shape, "parts": parts, "half": half}
