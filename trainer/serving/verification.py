"""Proves an export before it is published: a new process without JAX has to answer what predict
does."""

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ExportError
from pipeline.spec import with_offsets
from trainer.serving import serving_process
from trainer.serving.serving_process import Requests

BATCH_SIZES = (1, 3, 7)
IMAGE_TOLERANCE = 0.02
"""For signatures that decode images, whose pixels TensorFlow rounds in another way. It moved logits
of ResNets and of a small dense network by up to 0.0016, with antialiasing by up to 0.0075;
TensorFlow's fast DCT moves them by 0.067."""
POLL_SECONDS = 0.1

Predictions = Mapping[str, np.ndarray]


def verify(
    saved_model: str,
    scratch: str,
    inputs: Mapping[str, Mapping[str, Any]],
    predicted: Predictions,
    added: Mapping[str, float],
    tolerances: Mapping[str, float],
    check: Callable[[], None],
) -> dict[str, float]:
    """The largest difference between what the SavedModel answers and `predicted`: of each
    signature, over all batch sizes.

    inputs: see Requests.
    scratch: a directory for its files.
    added: see Task; what predictions have in common hides no difference.
    tolerances: of each signature.
    check: called while it waits; may raise.

    Raises ExportError if a difference is above its tolerance, and if the SavedModel cannot be
    loaded or called."""
    answers = served(saved_model, scratch, Requests(inputs, BATCH_SIZES), check)
    largest = dict[str, float]()
    offsets = {name: -number for name, number in added.items()}
    predicted = with_offsets(predicted, offsets)
    for (signature, rows), with_added in answers.items():
        answer = with_offsets(with_added, offsets)
        for name in sorted(answer.keys() ^ predicted.keys()):
            places = ["predict", "the export"]
            if name in answer:
                places.reverse()
            raise ExportError(
                f"export: {places[0]} has the prediction {name!r}, {places[1]} does not."
            )
        tolerance = tolerances[signature]
        # A class that differs says less than the probabilities that it follows from.
        for name in sorted(predicted, key=lambda name: (not _is_float(predicted[name]), name)):
            apart = difference(answer[name], predicted[name])
            if not apart <= tolerance:
                raise _differs(signature, rows, name, answer[name], predicted[name], tolerance)
            largest[signature] = max(largest.get(signature, 0.0), apart)
    return largest


def served(
    saved_model: str, scratch: str, requests: Requests, check: Callable[[], None] = lambda: None
) -> dict[tuple[str, int], dict[str, np.ndarray]]:
    """What a SavedModel answers, by signature and batch size, in a new process in which importing
    jax fails."""
    request, response, log = (Path(scratch, name) for name in ("requests", "responses", "log"))
    request.write_bytes(pickle.dumps(requests))
    # -P: a trainer.py in the current directory is not ours.
    command = [sys.executable, "-P", "-m", serving_process.__name__]
    command += [saved_model, str(request), str(response), str(os.getpid())]
    paths = [str(Path(serving_process.__file__).parents[2])]
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
    if not _is_float(expected):
        return 0.0 if np.array_equal(answer, expected) else np.inf
    answer = answer.astype(np.float64)
    expected = expected.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(answer[~finite], expected[~finite], equal_nan=True):
        return np.inf
    apart = np.abs(answer[finite] - expected[finite]).max(initial=0.0)
    largest = np.abs(expected[finite]).max(initial=0.0)
    if not np.isfinite(apart):
        return np.inf
    return float(apart / largest) if largest else (np.inf if apart else 0.0)


def _is_float(values: np.ndarray) -> bool:
    return values.dtype.kind in "fV"  # V: bfloat16


def _differs(
    signature: str, rows: int, name: str, answer: np.ndarray, expected: np.ndarray, tolerance: float
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
        f"the signature {signature!r} in batches of {rows}, is {_short(answer, row)}, and "
        f"{_short(expected, row)} in predict: they differ {much} (tolerance {tolerance:g}). "
        "Nothing was published. Ops that draw random numbers in evaluation, or depend on anything "
        "but the record, cannot be exported, and a method tensorflow has to compute what its op "
        "computes. On an accelerator, or in bfloat16, give a larger tolerance."
    )


def _short(values: np.ndarray, row: int) -> str:
    text = repr(values[row : row + 1].tolist()[0]) if row < len(values) else "missing"
    return text if len(text) <= 60 else f"{text[:57]}..."
