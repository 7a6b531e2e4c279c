"""The process that checks an export: loads the SavedModel without JAX, calls its signatures, and
writes what they give.

    python -m trainer.serving.serving_process SAVED_MODEL REQUESTS RESPONSES PARENT

Both files are pickles in a directory of the process PARENT, which starts it: Requests, and
{(signature, rows): predictions}. It ends when PARENT does, even if that is killed."""

import os
import pickle
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

WITHOUT = ("jax", "jaxlib", "flax", "orbax")


class Requests(NamedTuple):
    """inputs: signature -> argument -> a NumPy array, or a list of bytes, with a row per record.
    batch_sizes: all records are sent in batches of each of these sizes."""

    inputs: Mapping[str, Mapping[str, Any]]
    batch_sizes: tuple[int, ...]


def answer(saved_model: str, requests: Requests) -> dict[tuple[str, int], dict[str, Any]]:
    """The predictions of all records, by signature and batch size."""
    import numpy as np

    from pipeline.tf_cpu import tf

    loaded = tf.saved_model.load(saved_model)
    answers = {}
    for name, inputs in requests.inputs.items():
        signature = loaded.signatures[name]
        count = len(next(iter(inputs.values())))
        for rows in requests.batch_sizes:
            batches = []
            for start in range(0, count, rows):
                arguments = {key: value[start : start + rows] for key, value in inputs.items()}
                batches.append(signature(**tf.nest.map_structure(tf.constant, arguments)))
            answers[name, rows] = tf.nest.map_structure(
                lambda *parts: np.concatenate(parts), *batches
            )
    return answers


def main(saved_model: str, requests: str, responses: str, parent: str) -> None:
    """Answers the requests in one file in the other one."""
    threading.Thread(target=_end_with, args=(int(parent),), daemon=True).start()
    for name in WITHOUT:
        sys.modules[name] = None  # pyright: ignore[reportArgumentType] (importing it fails)
    answers = answer(saved_model, pickle.loads(Path(requests).read_bytes()))
    Path(responses).write_bytes(pickle.dumps(answers))


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
