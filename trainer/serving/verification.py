"""Proves an export before it is published: a new process without JAX has to answer what predict
does.

    python -m trainer.serving.verification SAVED_MODEL REQUESTS RESPONSES PARENT

is this process: it loads the SavedModel, calls its signatures, and writes what they return. Both
files are pickles in a directory of the process PARENT, which starts it: Requests and Answers. It
ends when PARENT does, even if that is killed."""

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ExportError
from pipeline.spec import with_offsets

BATCH_SIZES = (1, 3, 7)
IMAGE_TOLERANCE = 0.02
"""For signatures that decode images, whose pixels TensorFlow rounds in another way. It moved logits
of ResNets and of a small dense network by up to 0.0016, with antialiasing by up to 0.0075;
TensorFlow's fast DCT moves them by 0.067."""
POLL_SECONDS = 0.1
WITHOUT = ("jax", "jaxlib", "flax", "orbax")

Requests = Mapping[str, Mapping[str, Any]]
"""signature -> argument -> a NumPy array, or a list of bytes, with a row per record."""
Predictions = Mapping[str, np.ndarray]
Answers = dict[tuple[str, int], dict[str, np.ndarray]]
"""Predictions of all records by signature and batch size."""


def verify(
    saved_model: str,
    scratch: str,
    requests: Requests,
    predicted: Predictions,
    added: Mapping[str, float],
    tolerances: Mapping[str, float],
    check: Callable[[], None],
) -> dict[str, float]:
    """The largest difference between what the SavedModel answers and `predicted`: of each
    signature, over all batch sizes.

    scratch: a directory for its files.
    added: see Task; what predictions have in common hides no difference.
    tolerances: of each signature.
    check: called while it waits; may raise.

    Raises ExportError if a difference is above its tolerance, and if the SavedModel cannot be
    loaded or called."""
    largest = dict.fromkeys(requests, 0.0)
    offsets = {name: -number for name, number in added.items()}
    predicted = with_offsets(predicted, offsets)
    # A class that differs says less than the probabilities that it follows from.
    names = sorted(predicted, key=lambda name: (not _is_float(predicted[name]), name))
    for (signature, rows), with_added in served(saved_model, scratch, requests, check).items():
        answer = with_offsets(with_added, offsets)
        for name in sorted(answer.keys() ^ predicted.keys()):
            places = ["predict", "the export"]
            if name in answer:
                places.reverse()
            raise ExportError(
                f"export: {places[0]} has the prediction {name!r}, {places[1]} does not."
            )
        for name in names:
            apart = difference(answer[name], predicted[name])
            if not apart <= (tolerance := tolerances[signature]):
                where = f"the signature {signature!r} in batches of {rows}"
                raise _differs(where, name, answer[name], predicted[name], tolerance)
            largest[signature] = max(largest[signature], apart)
    return largest


def served(
    saved_model: str, scratch: str, requests: Requests, check: Callable[[], None] = lambda: None
) -> Answers:
    """What a SavedModel answers in a new process in which importing jax fails."""
    request, response, log = (Path(scratch, name) for name in ("requests", "responses", "log"))
    request.write_bytes(pickle.dumps(requests))
    # -P: a trainer.py in the current directory is not ours.
    command = [sys.executable, "-P", "-m", "trainer.serving.verification"]
    command += [saved_model, str(request), str(response), str(os.getpid())]
    paths = [str(Path(__file__).parents[2])]
    if path := os.environ.get("PYTHONPATH"):
        paths.append(path)
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": os.pathsep.join(paths)}
    # TensorFlow's XLA is another version; a flag that it does not know ends it
    environment.pop("XLA_FLAGS", None)
    with log.open("wb") as output:
        # A session of its own: Ctrl-C is for this process, which ends that one.
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, start_new_session=True
        )
        try:
            while process.poll() is None:
                check()
                time.sleep(POLL_SECONDS)
        finally:
            process.kill()
            process.wait()
    check()  # it may have ended because the whole job was asked to
    if process.returncode:
        log_text = log.read_text(errors="replace").strip()
        raise ExportError(
            f"the exported model does not run without JAX: exit code {process.returncode}, "
            f"{log_text.rpartition(chr(10))[2] or 'no message'}"
        )
    return pickle.loads(response.read_bytes())


def difference(answer: np.ndarray, expected: np.ndarray) -> float:
    """0 if all are equal; infinite for others that are not numbers with a fraction, or not finite
    in the same places; else the largest difference as a share of the largest expected magnitude."""
    if answer.shape != expected.shape:
        return np.inf
    unequal = (answer != expected) & ((answer == answer) | (expected == expected))  # NaN is not NaN
    if not unequal.any():
        return 0.0
    if not _is_float(expected):
        return np.inf
    answer = answer.astype(np.float64)
    expected = expected.astype(np.float64)
    apart = np.abs(answer[unequal] - expected[unequal]).max()
    largest = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
    return float(apart / largest) if np.isfinite(apart) and largest else np.inf


def _is_float(values: np.ndarray) -> bool:
    return values.dtype.kind in "fV"  # V: bfloat16


def _differs(
    where: str, name: str, answer: np.ndarray, expected: np.ndarray, tolerance: float
) -> ExportError:
    by_row = [
        difference(answer[row : row + 1], expected[row : row + 1]) for row in range(len(expected))
    ]
    row = int(np.argmax(by_row))
    apart = difference(answer, expected)
    much = (
        f"by {apart:.2g} of the largest value"
        if np.isfinite(apart)
        else "where they have to be equal"
    )
    return ExportError(
        f"the export does not predict what the trainer predicts: {name!r} of record {row}, through "
        f"{where}, is {_short(answer, row)}, and {_short(expected, row)} in predict: they differ "
        f"{much} (tolerance {tolerance:g}). Nothing was published. Ops that draw random numbers in "
        "evaluation, or depend on anything but the record, cannot be exported, and a method "
        "tensorflow has to compute what its op computes. On an accelerator, or in bfloat16, give a "
        "larger tolerance."
    )


def _short(values: np.ndarray, row: int) -> str:
    text = repr(values[row : row + 1].tolist()[0]) if row < len(values) else "missing"
    return text if len(text) <= 60 else f"{text[:57]}..."


def answer(
    saved_model: str, requests: Requests, batch_sizes: tuple[int, ...] = BATCH_SIZES
) -> Answers:
    """What the SavedModel answers in this process: all records, in batches of each of the sizes."""
    from pipeline.tf_cpu import tf

    loaded = tf.saved_model.load(saved_model)
    answers = Answers()
    for name, inputs in requests.items():
        signature = loaded.signatures[name]
        count = len(next(iter(inputs.values())))
        for rows in batch_sizes:
            batches = []
            for start in range(0, count, rows):
                arguments = {key: value[start : start + rows] for key, value in inputs.items()}
                batches.append(signature(**tf.nest.map_structure(tf.constant, arguments)))
            answers[name, rows] = {
                key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]
            }
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
