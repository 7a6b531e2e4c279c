"""The batches of a program of another library, tf.data's or Grain's, as the Input of one host.

pipeline.tf_data and pipeline.grain make these."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import GeneratorType
from typing import Any

import numpy as np

from pipeline.errors import FingerprintError, InputError
from pipeline.hosts import Hosts
from pipeline.inputs.batches import Batch
from pipeline.inputs.input_info import InputInfo
from pipeline.inputs.iterator_states import IteratorState, IteratorStates, chained
from pipeline.logs import log
from pipeline.spec import MASK, RESERVED, leaves, mapped, narrowed, tree_of

TF_DATA = "a tf.data program"
GRAIN = "a Grain program"
# whose states and checksums are kept: the trainer saves a position when it has read further
NEWEST = 2**13
_NAMED = ("fingerprint", "global_batch")  # in a saved position

Run = Callable[[int, Any, int | None], tuple[Iterator[Mapping[str, Any]], int]]
"""Begins a pass.

Gets a position, the state that the iterator of another pass had there (None: unknown), and how many
batches there must be, of which the last are padding (None: those of the program). Returns an
iterator, and the position where it is: that one, or 0."""


class Program:
    """One host's batches of a program that another library runs.

    info: its `program` tells what hosts have in common. rows: which rows of the program's batches
    are this host's; None: all. A position is a number of batches since the program's beginning.
    64-bit numbers become 32-bit, as in JAX."""

    def __init__(
        self, run: Run, info: InputInfo, hosts: Hosts, rows: np.ndarray | None = None
    ) -> None:
        self.run = run
        self.info = info
        self.hosts = hosts
        self.rows = rows
        # by position, of the newest pass or as restored
        self.crcs = dict[int, int]()
        self.states = dict[int, str]()
        self.iterator_states = IteratorStates(info.fingerprint)
        # of the position that was saved or restored last
        self.iterator_state: IteratorState | None = None

    def __iter__(self) -> "ProgramBatches":
        """The batches from the start."""
        return self.batches(self.info.start or 0)

    def batches(self, position: int, /) -> "ProgramBatches":
        """The batches after that many, which are read and dropped first: all of them, or the last
        one if the program's iterator can go there.

        FingerprintError if these are not the ones before a position that was restored, or those of
        the last pass; InputError for a number that does not fit 32 bits; EvaluationError for
        another number of records than stated."""
        return ProgramBatches(self, position)

    def advance(self, position: int, n_batches: int, /) -> int:
        """The position `n_batches` later."""
        return position + n_batches

    def state(self, position: int, /) -> dict[str, Any]:
        """The position; if the newest pass has been there, with the checksums of all batches before
        it, and of those without the last one, and the state of the iterator before that.

        Of a program of tf.data, `iterator_state` is the one to store with it, without its data."""
        self.iterator_state = self.iterator_states.newest(position) if self.saves else None
        named = {name: getattr(self.info, name) for name in _NAMED}
        before = max(position - 1, 0)
        return named | {
            "batches": position,
            "crcs": [self.crcs.get(at) for at in (before, position)],
            "iterator_before": json.loads(self.states.get(before, "null")),
            "iterator": self.iterator_state and self.iterator_state.without_data(),
        }

    def restore(self, state: Mapping[str, Any], /) -> int:
        """The inverse of `state`; also of a dict whose `hosts` has that of each host.

        FingerprintError for that of another input or batch size; where hosts have records of their
        own, also for another number of hosts."""
        several: Sequence[Any] = state.get("hosts", [state])
        alike = len(several) == self.hosts.count
        state = several[self.hosts.index if alike else 0]
        for name in _NAMED:
            if (saved := state.get(name)) != (ours := getattr(self.info, name)):
                raise FingerprintError(
                    f"The saved position has {name}={saved!r}, this input has {name}={ours!r}."
                )
        if not alike and self.info.program == "own":
            raise FingerprintError(
                f"The saved position is that of {len(several)} hosts, each with records of its "
                f"own, and this run has {self.hosts.count}. Resume with as many."
            )
        if type(batches := state.get("batches")) is not int or batches < 0:
            raise FingerprintError(f"The saved position, {batches!r}, is not a number of batches.")
        self.crcs = {}
        self.states = {}
        self.iterator_states = IteratorStates(self.info.fingerprint)
        self.iterator_state = None
        if alike or self.info.program == "complete":  # whose hosts have the same
            before = max(batches - 1, 0)
            crcs = zip((before, batches), state.get("crcs", ()), strict=False)
            self.crcs = {at: crc for at, crc in crcs if crc is not None}
            self.states = {before: json.dumps(state.get("iterator_before"))}
            if kept := state.get("iterator"):
                self.iterator_state = IteratorState(**kept, data=b"")
        return batches

    @property
    def saves(self) -> bool:
        """Whether this host saves states of its iterator: one saves for all that run the same
        program."""
        return self.info.endless and (self.info.program == "own" or self.hosts.index == 0)

    def resume_with(self, data: bytes) -> None:
        """Takes the data of the restored `iterator_state`: the next pass begins there, if it is of
        this program."""
        assert self.iterator_state
        self.iterator_state.data = data
        self.iterator_states = IteratorStates(self.info.fingerprint, self.iterator_state)

    def agree_on(self, counts: Sequence[int]) -> None:
        """Hosts have these numbers of records of their own in an epoch: each delivers as many
        batches as that with the most."""
        steps = -(-max(counts) // own_rows(self.hosts, self.info.global_batch or 0))
        due = self.info.num_records or sum(counts)
        self.info = replace(self.info, num_records=due, steps_per_epoch=steps)


class ProgramBatches(Iterator[Batch]):
    """A pass over a Program. skipped: how many batches were dropped. digest: where every host runs
    the complete program, the checksum of all batches so far."""

    def __init__(self, source: Program, position: int) -> None:
        before = max(position - 1, 0)  # the last batch is read again, and compared
        # the first pass, and any other from the beginning, may have another order
        checked = (before, position) if position else ()
        self._expected = {at: source.crcs[at] for at in checked if at in source.crcs}
        self._source = source
        self._position = position
        self._closed = False
        saved = source.states.get(before, "null")
        state = json.loads(saved)
        state = state.encode("latin-1") if isinstance(state, str) else state
        # a SavableIterator if it is of tf.data
        self._iterator: Any
        self._iterator, self._at = source.run(before, state, source.info.steps_per_epoch)
        self.skipped = 0
        self._crc = source.crcs.get(self._at, 0) if self._at else 0
        # of a position that is saved again before a batch was read, too
        self._crcs = source.crcs = self._expected | {self._at: self._crc}
        self._states = source.states = {before: saved}
        resumed = source.iterator_states.newest(position)
        self._saved = source.iterator_states = IteratorStates(source.info.fingerprint, resumed)
        self._saves = source.saves and hasattr(self._iterator, "save")

    @property
    def digest(self) -> int | None:
        return self._crc if self._source.info.program == "complete" else None

    def __next__(self) -> Batch:
        if self._at < self._position:
            self._drop()
        rows = self._source.rows
        batch = mapped(lambda leaf: narrowed(leaf if rows is None else leaf[rows]), self._read())
        count = len(next(leaf for _, leaf in leaves(batch)))
        return {MASK: np.ones(count, np.float32)} | batch

    def save_state(self, taken: int) -> None:
        """Saves the state of the iterator if it is time, in the thread that reads.

        taken: how many batches of the pass the training has taken at least."""
        if self._saves:
            self._saved.save(self._iterator, self._at, self._crc, self._position + taken)

    def _jump(self) -> None:
        """Continues from a saved state of the iterator, if there is one of this program.

        A changed program would first deliver what the state holds. So its graph is compared, and
        the first batch that it makes anew."""
        state = self._saved.newest(self._position)
        if state is None:
            return
        name = self._source.info.fingerprint
        try:
            if self._iterator.graph != state.graph:
                raise InputError("its graph is not that of the run")
            if chained(0, next(self._iterator.again())) != state.first:
                raise InputError("its first batch is not that of the run")
            other = self._iterator.again()
            other.restore(state.data)
        except Exception as error:  # of tf.data or the program
            log.warning("%s cannot continue from its saved state: %s", name, error)
            self._saved = self._source.iterator_states = IteratorStates(name)
            return
        self._iterator, self._at, self._crc = other, state.batches, state.crc
        self._crcs[self._at] = self._crc
        if state.following is not None:  # nothing else is compared if this is the position
            self._expected[self._at + 1] = state.following

    def _drop(self) -> None:
        began = time.monotonic()
        self._jump()
        name = self._source.info.fingerprint
        left = self._position - self._at
        tell = log.info if left > 1 else log.debug
        where = f"continues after batch {self._at}" if self._at else "runs from its beginning"
        tell("%s %s, to resume after %d batches", name, where, left)
        while self._at < self._position and not self._closed:
            try:
                self._read()
            except StopIteration:
                raise self._changed(f"has only {self._at} batches") from None
            self.skipped += 1
        tell("it dropped %d batches in %.1f s", self.skipped, time.monotonic() - began)

    def _read(self) -> Mapping[str, Any]:
        batch = next(self._iterator)
        self._crc = chained(self._crc, batch)
        self._at += 1
        self._crcs[self._at] = self._crc
        if self._saves:
            self._saved.passed(self._iterator, self._at, self._crc)
        if self._source.info.program == "own":
            self._states[self._at] = _kept(self._iterator)
        for kept in (self._crcs, self._states):
            kept.pop(self._at - NEWEST, None)
        if self._expected.get(self._at, self._crc) != self._crc:
            raise self._changed("delivers others")
        return batch

    def _changed(self, what: str) -> FingerprintError:
        name = self._source.info.fingerprint
        return FingerprintError(
            f"the run was trained on the first {self._position} batches of {name}, which now "
            f"{what}, so it cannot resume. Give it the data and transformations that it had, and a"
            " seed wherever it draws. In tf.data, list files with shuffle=False, keep interleave "
            "and map deterministic, and make the dataset anew in an input_fn. Or start over in "
            "another work directory."
        )

    def close(self) -> None:
        """Ends the dropping of batches in another thread; `next` returns once the library has made
        the current one."""
        self._closed = True
        self._saved.close()
        if not isinstance(self._iterator, GeneratorType):  # which only its own thread can close
            getattr(self._iterator, "close", lambda: None)()


def padding(spec: Mapping[str, Any]) -> Batch:
    """A batch of rows that do not count."""
    return tree_of(
        (path, np.full(like.shape, RESERVED[path[0]].pad if path[0] in RESERVED else 0, like.dtype))
        for path, like in leaves(spec)
    )


def own_rows(hosts: Hosts, global_batch: int) -> int:
    """The rows of a host with records of its own. Raises BatchSizeError, and InputError where hosts
    share rows."""
    rows = sum(map(len, hosts.host_rows(global_batch)))
    if rows * hosts.count != global_batch:
        raise InputError(
            f"host {hosts.index} of {hosts.count} delivers {rows} of {global_batch} rows, which it "
            "shares with others, so hosts cannot have records of their own. Leave out per_host."
        )
    return rows


def _kept(iterator: Any) -> str:
    """The state of a program's iterator as JSON, where bytes are a text; null if it has none."""
    state = getattr(iterator, "get_state", lambda: None)()
    text = state.decode("latin-1") if isinstance(state, bytes) else state
    try:
        return json.dumps(text, default=int)
    except (TypeError, ValueError):
        return "null"
