"""The batches of any tf.data program as the Input of one host.

pipeline.tf_data makes these; the trainer reads one in place of the tf.data.Dataset that carries
it."""

import time
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.errors import EvaluationError, FingerprintError, InputError
from pipeline.inputs.batches import DECODING, Batch
from pipeline.inputs.input_info import InputInfo
from pipeline.logs import log
from pipeline.shards.frames import crc32c_of
from pipeline.spec import RESERVED, ArraySpec, delivered
from pipeline.tf_quiet import tf

MASK = "_mask"
_NAMED = ("fingerprint", "global_batch")  # in a saved position


class TfProgram:
    """One host's rows of the batches of a program, which every host runs completely, and runs again
    to resume.

    program: a tf.data.Dataset of global batches, which are dicts. rows: which rows of them are this
    host's. num_records, steps_per_epoch: of one pass; None if it is endless or they are unknown. A
    position is a number of batches since the program's beginning. 64-bit numbers become 32-bit, as
    in JAX."""

    def __init__(
        self,
        program: Any,
        global_batch: int,
        rows: np.ndarray,
        *,
        num_records: int | None,
        endless: bool,
        start: int,
    ) -> None:
        self.program = program
        self.rows = rows
        self.info = InputInfo(
            spec=_spec(program, rows),
            fingerprint="a tf.data program",
            start=start,
            num_records=num_records,
            steps_per_epoch=None if num_records is None else -(-num_records // global_batch),
            global_batch=global_batch,
            endless=endless,
            is_program=True,
        )
        # of the newest pass: after each batch, the checksum of all so far
        self.digests = array("I")
        self.restored = dict[int, int]()  # position -> the checksum that was saved with it

    def batches(self, position: int, /) -> "TfProgramBatches":
        """The batches after that many, which are read and dropped first.

        FingerprintError if these are not the ones before a position that was restored, or those of
        the last pass; InputError for a number that does not fit 32 bits; EvaluationError for
        another number of records than stated."""
        return TfProgramBatches(self, position)

    def advance(self, position: int, n_batches: int, /) -> int:
        """The position `n_batches` later."""
        return position + n_batches

    def state(self, position: int, /) -> dict[str, Any]:
        """The position; with a checksum of all batches before it, if the newest pass has read
        them."""
        crc = {"crc32c": self.digests[position - 1]} if 0 < position <= len(self.digests) else {}
        return {name: getattr(self.info, name) for name in _NAMED} | {"batches": position, **crc}

    def restore(self, state: Mapping[str, Any], /) -> int:
        """The inverse of `state`. FingerprintError for that of another input or batch size."""
        for name in _NAMED:
            if (saved := state.get(name)) != (ours := getattr(self.info, name)):
                raise FingerprintError(
                    f"The saved position has {name}={saved!r}, this input has {name}={ours!r}."
                )
        if type(batches := state.get("batches")) is not int or batches < 0:
            raise FingerprintError(f"The saved position, {batches!r}, is not a number of batches.")
        self.restored = {batches: state["crc32c"]} if "crc32c" in state else {}
        return batches


def _spec(program: Any, rows: np.ndarray) -> Mapping[str, Any]:
    """The spec, as of a DatasetInput; batches of tuples have none, because only tf.data delivers
    them."""
    if not isinstance(program.element_spec, dict):
        return {}

    def row(leaf: Any) -> ArraySpec:
        return ArraySpec(
            (len(rows), *leaf.shape[1:]), delivered(np.dtype(leaf.dtype.as_numpy_dtype))
        )

    mask = {MASK: ArraySpec(rows.shape, RESERVED[MASK].dtype)}
    return mask | tf.nest.map_structure(row, program.element_spec)


class TfProgramBatches(Iterator[Batch]):
    """A pass over a TfProgram. digest: the checksum of the global batches so far; skipped: how many
    were dropped."""

    def __init__(self, source: TfProgram, skip: int) -> None:
        self.digest = self.skipped = 0
        self._expected = (
            {skip: source.digests[skip - 1]} if 0 < skip <= len(source.digests) else {}
        ) | source.restored
        self._source = source
        self._skip = skip
        self._closed = False
        self._iterator = source.program.prefetch(DECODING).as_numpy_iterator()
        self._digests = source.digests = array("I")

    def __next__(self) -> Batch:
        if self.skipped < self._skip:
            began = time.monotonic()
            log.info(
                "the tf.data program runs from its beginning, to resume after %d batches",
                self._skip,
            )
            while self.skipped < self._skip and not self._closed:
                try:
                    self._read()
                except StopIteration:
                    raise _changed(f"has only {self.skipped} batches", self._skip) from None
                self.skipped += 1
            log.info("it dropped %d batches in %.1f s", self.skipped, time.monotonic() - began)
        batch = tf.nest.map_structure(lambda leaf: _narrowed(leaf[self._source.rows]), self._read())
        return {MASK: np.ones(self._source.rows.shape, np.float32)} | batch

    def _read(self) -> Any:
        try:
            batch = next(self._iterator)
            if len(self._digests) + 1 == self._source.info.steps_per_epoch:
                next(self._iterator, None)  # tf.data checks a stated cardinality only at the end
        except tf.errors.FailedPreconditionError as e:
            if "expected to contain" not in str(e):
                raise
            raise EvaluationError(
                "the tf.data program has another number of examples than its assert_cardinality "
                "states. State what it has, or nothing: then it is not checked."
            ) from e
        self.digest = crc32c_of([self.digest.to_bytes(4, "little"), *tf.nest.flatten(batch)])
        self._digests.append(self.digest)
        if self._expected.get(len(self._digests), self.digest) != self.digest:
            raise _changed("delivers others", len(self._digests))
        return batch

    def close(self) -> None:
        """Ends the dropping of batches in another thread; `next` returns once TensorFlow has made
        the current one."""
        self._closed = True


def _changed(what: str, batches: int) -> FingerprintError:
    return FingerprintError(
        f"the run was trained on the first {batches} batches of a tf.data program, which now "
        f"{what}, so it cannot resume. Give every shuffle a seed, list files with shuffle=False, "
        "keep interleave and map deterministic, and make the dataset anew in an input_fn; or start "
        "over in another work directory."
    )


def _narrowed(wide: np.ndarray) -> np.ndarray:
    narrow = wide.astype(delivered(wide.dtype), copy=False)
    if wide.dtype.kind in "iu" and not np.array_equal(narrow, wide):
        raise InputError(
            f"the tf.data program delivers {wide.dtype} numbers in {wide.min()}..{wide.max()}, "
            f"which do not fit {narrow.dtype}. JAX computes in 32 bits; deliver smaller numbers."
        )
    return narrow
