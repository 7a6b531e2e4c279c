"""The batches of any tf.data program as the Input of one host.

pipeline.tf_data makes these; the trainer reads one in place of the tf.data.Dataset that carries it."""

import time
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.errors import FingerprintError, InputError
from pipeline.inputs.batches import Batch
from pipeline.logs import logger
from pipeline.shards.record import crc32c_of
from pipeline.spec import RESERVED, ArraySpec, delivered
from pipeline.tf_cpu import tf

__all__ = ["MASK", "TfProgram"]

log = logger("pipeline")
MASK = "_mask"


class TfProgram:
    """One host's rows of the batches of a program, which every host runs completely, and runs again to resume.

    program: a tf.data.Dataset of global batches, which are dicts. rows: the numbers of this host's rows. num_records,
    steps_per_epoch: of one pass; None if it is endless or they are unknown. A position is a number of batches since the
    program's beginning. 64-bit numbers become 32-bit, as in JAX."""

    expected_crc = None

    def __init__(
        self, program: Any, global_batch: int, rows: np.ndarray, *, num_records: int | None, endless: bool, start: int
    ) -> None:
        self.program, self.rows = program, slice(None) if len(rows) == global_batch else rows
        self.num_records, self.endless, self.start = num_records, endless, start
        self.steps_per_epoch = None if num_records is None else -(-num_records // global_batch)
        self.fingerprint = f"a tf.data program in batches of {global_batch}"
        self.spec: Mapping[str, Any] = {MASK: ArraySpec(rows.shape, RESERVED[MASK].dtype)} | tf.nest.map_structure(
            lambda leaf: ArraySpec((len(rows), *leaf.shape[1:]), delivered(np.dtype(leaf.dtype.as_numpy_dtype))),
            program.element_spec,
        )
        self.digests = array("I")  # of the newest pass: after each batch, the checksum of all so far
        self.restored: dict[int, int] = {}  # position -> the checksum that was saved with it

    def batches(self, position: int, /) -> "TfProgramBatches":
        """The batches after that many, which are read and dropped first.

        FingerprintError if these are not the ones before a position that was restored; InputError for a number that
        does not fit 32 bits."""
        return TfProgramBatches(self, position)

    def advance(self, position: int, n_batches: int, /) -> int:
        """The position `n_batches` later."""
        return position + n_batches

    def state(self, position: int, /) -> dict[str, Any]:
        """The position; with a checksum of all batches before it, if the newest pass has read them."""
        crc = {"crc32c": self.digests[position - 1]} if 0 < position <= len(self.digests) else {}
        return {"fingerprint": self.fingerprint, "batches": position, **crc}

    def restore(self, state: Mapping[str, Any], /) -> int:
        """The inverse of `state`. FingerprintError for that of another input or batch size."""
        if state.get("fingerprint") != self.fingerprint:
            raise FingerprintError(f"its position belongs to {state.get('fingerprint')}; this is {self.fingerprint}.")
        if "crc32c" in state:
            self.restored = {state["batches"]: state["crc32c"]}
        return state["batches"]


class TfProgramBatches(Iterator[Batch]):
    """A pass over a TfProgram. digest: the checksum of the global batches so far; skipped: how many were dropped."""

    def __init__(self, source: TfProgram, skip: int) -> None:
        self.digest = self.skipped = 0
        self._source, self._skip = source, skip
        self._iterator = source.program.as_numpy_iterator()
        self._digests = source.digests = array("I")

    def __next__(self) -> Batch:
        if self.skipped < self._skip:
            self._skip_all()
        batch = tf.nest.map_structure(lambda leaf: _narrowed(leaf[self._source.rows]), self._read())
        return {MASK: np.ones(self._source.spec[MASK].shape, np.float32)} | batch

    def _skip_all(self) -> None:
        began = time.monotonic()
        log.info("the tf.data program runs from its beginning, to resume after %d batches", self._skip)
        while self.skipped < self._skip:
            self._read()
            self.skipped += 1
        log.info("it dropped them in %.1f s", time.monotonic() - began)
        if self._source.restored.get(self._skip, self.digest) != self.digest:
            raise FingerprintError(
                f"the tf.data program's first {self._skip} batches are not those that the run was trained on, so it "
                "cannot resume. Give every shuffle a seed, list files with shuffle=False and keep interleave and map "
                "deterministic; or start over in another work directory."
            )

    def _read(self) -> Any:
        batch = next(self._iterator)
        self.digest = crc32c_of([self.digest.to_bytes(4, "little"), *tf.nest.flatten(batch)])
        self._digests.append(self.digest)
        return batch


def _narrowed(wide: np.ndarray) -> np.ndarray:
    narrow = wide.astype(delivered(wide.dtype), copy=False)
    if wide.dtype.kind in "iu" and not np.array_equal(narrow, wide):
        raise InputError(
            f"the tf.data program delivers {wide.dtype} numbers in {wide.min()}..{wide.max()}, which do not fit "
            f"{narrow.dtype}. JAX computes in 32 bits; deliver smaller numbers."
        )
    return narrow
