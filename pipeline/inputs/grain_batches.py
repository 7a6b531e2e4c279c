"""Exact batches of any Grain program, which pipeline.grain offers, and the trainer makes of what it
is given."""

import operator
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, SupportsIndex

import numpy as np

from pipeline.errors import EmptySplitError, EvaluationError, FingerprintError, InputError
from pipeline.hosts import ONE_HOST, Hosts
from pipeline.inputs.batches import Batch
from pipeline.inputs.input_info import InputInfo, proven_by
from pipeline.inputs.program import GRAIN, Program, own_rows, padding
from pipeline.logs import log
from pipeline.sources.records import Records
from pipeline.spec import MASK, NUMBERS, RESERVED, ArraySpec, delivered, leaves, mapped, tree_of

ENDLESS = 2**62  # elements; a repeated MapDataset has more
EMPTY = "the Grain dataset has no elements."


def training_batches(dataset: Any, global_batch: int, hosts: Hosts = ONE_HOST) -> Program:
    """The input of a Trainer: endless batches of this host.

    dataset: of dicts, nested ones too, of numbers of fixed shapes: of one example each, or of a
    batch, if all arrays have its rows. A grain.MapDataset is shared by rows of the global batch,
    whatever the number of hosts, and repeated: its shuffles and seeds know the epoch of an index
    beyond its length. Of a grain.IterDataset, a grain.DataLoader or an iterator, each host has its
    own, with records of this host only and repeated, as its user makes it, and without partial
    batches; a run resumes on as many hosts. Grain's worker processes survive SIGKILL of the run.

    A run resumes at the very next batch: by arithmetic, or by the iterator's state.

    Raises InputError for elements that cannot be batched, EmptySplitError, BatchSizeError."""
    if _has_places(dataset):
        return _of_places(dataset, global_batch, hosts, epoch=False)
    return _of_iterator(dataset, global_batch, hosts, epoch=False)


def evaluation_batches(
    dataset: Any,
    global_batch: int,
    hosts: Hosts = ONE_HOST,
    *,
    num_records: int | None = None,
    records: Records | None = None,
) -> Program:
    """The input of a Trainer: every example once, in equally many batches on every host; `_mask` is
    0.0 in rows that fill the last ones.

    dataset: as in training_batches, not repeated. num_records: of this host's iterator, such as
    after a filter; it is checked. One host can count without it. records: what `source` read, as
    open_dataset returns it: all of them must be counted, and an evaluation that keeps `_index` and
    `_crc` is proven.

    Raises as training_batches; InputError for an endless dataset, and for an unknown number on
    several hosts."""
    if _has_places(dataset):
        program = _of_places(dataset, global_batch, hosts, epoch=True)
    elif num_records is None and hosts.count > 1:
        raise InputError(
            "the number of records is unknown, and hosts with records of their own must know it. "
            "Give num_records, or a grain.MapDataset, which the hosts share."
        )
    else:
        program = _of_iterator(dataset, global_batch, hosts, epoch=True, count=num_records)
    if records is not None:
        program.info = proven_by(program.info, records.info)
    return program


def _has_places(dataset: Any) -> bool:
    return hasattr(dataset, "to_iter_dataset") and hasattr(dataset, "__getitem__")


def _of_places(dataset: Any, global_batch: int, hosts: Hosts, *, epoch: bool) -> Program:
    """Of a MapDataset."""
    rows = np.concatenate([*map(np.array, hosts.host_rows(global_batch))])
    count = len(dataset)
    if not count:
        raise EmptySplitError(EMPTY)
    if epoch and count > ENDLESS:
        raise InputError(
            "the Grain dataset is endless, so no epoch of it is exact. Leave out its repeat()."
        )
    example = _checked(dataset[0])
    batched = _is_batch(example, global_batch)
    num_records = count
    if batched and epoch:  # every host makes the complete batches, and keeps its rows
        num_records = (count - 1) * global_batch + max(_rows(_checked(dataset[count - 1])))
    chosen, every = ([0], 1) if batched else (rows.tolist(), global_batch)
    spec = _spec(example, global_batch if batched else len(rows), batched)
    blank = mapped(lambda leaf: leaf[0], padding(spec))

    def run(position: int, state: Any, steps: int | None) -> tuple[Iterator[Any], int]:
        import grain

        del state
        left = None if steps is None else steps - position
        found = _Found(dataset, position, chosen, every, left, count if epoch else None, blank)
        # Grain reads 500 elements ahead, which may be batches.
        options = grain.ReadOptions(4, 4) if batched else None
        iterator = iter(grain.MapDataset.source(found).to_iter_dataset(options))
        return _Batches(iterator, spec, batched, left), position

    info = _info(_spec(example, len(rows), batched), global_batch, epoch)
    if epoch:
        steps = -(-num_records // global_batch)
        info = replace(info, num_records=num_records, steps_per_epoch=steps)
    info = replace(info, program="complete" if batched else "rows")
    return Program(run, info, hosts, rows if batched else None)


@dataclass(frozen=True)
class _Found:
    """The elements of a MapDataset in the order in which a host needs them, as a source for Grain.

    begin: the first step. rows: of the `every` elements of a step. steps: how many are left of an
    epoch, whose elements beyond `count` are `blank`; None: without end."""

    dataset: Any
    begin: int
    rows: Sequence[int]
    every: int
    steps: int | None
    count: int | None
    blank: Any

    def __len__(self) -> int:
        return ENDLESS if self.steps is None else self.steps * len(self.rows)

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        step, row = divmod(operator.index(index), len(self.rows))
        place = (self.begin + step) * self.every + self.rows[row]
        if self.count is not None and place >= self.count:
            return self.blank
        element = self.dataset[place]
        if element is None:
            raise InputError(
                f"element {place} of the Grain dataset is None, as a filter leaves it. Give "
                "dataset.to_iter_dataset(), which skips such elements."
            )
        return element


def _of_iterator(
    dataset: Any, global_batch: int, hosts: Hosts, *, epoch: bool, count: int | None = None
) -> Program:
    """Of a dataset of this host that can only be iterated, or of an iterator."""
    from absl import flags

    if not flags.FLAGS.is_parsed():  # else Grain cannot start workers
        flags.FLAGS.mark_as_parsed()
    size = own_rows(hosts, global_batch)
    iterators = [iter(dataset)]
    begin = iterators[0].get_state()
    first = [*islice(iterators[0], 1)]
    if not first:
        raise EmptySplitError(EMPTY)
    example = _checked(first[0])
    batched = _is_batch(example, size)
    spec = _spec(example, size, batched)

    def run(position: int, state: Any, steps: int | None) -> tuple[Iterator[Any], int]:
        # what the first pass has read ahead is not read again
        ahead = first if iterators and state is None else []
        iterator = iterators.pop() if iterators else iter(dataset)
        try:
            if not ahead:
                iterator.set_state(begin if state is None else state)
        except Exception as error:  # of any class: a state of another program
            raise FingerprintError(f"Grain does not take the saved state: {error}") from error
        lent = iterator is dataset
        batches = _Batches(iterator, spec, batched, steps, epoch, ahead, lent)
        return batches, 0 if state is None else position

    info = replace(_info(spec, global_batch, epoch), program="own", host_records=count)
    program = Program(run, info, hosts)
    if count is not None and hosts.count == 1:
        program.agree_on([count])
    return program


@dataclass
class _Batches(Iterator[Batch]):
    """The batches of this spec that Grain's elements make.

    steps: how many there must be; None: as many as there are. pads: whether the last one is filled
    up, rather than dropped. ahead: elements that come first. lent: whether other passes need the
    iterator, too."""

    iterator: Any
    spec: Mapping[str, Any]
    batched: bool
    steps: int | None
    pads: bool = True
    ahead: Sequence[Any] = ()
    lent: bool = False

    def __next__(self) -> Batch:
        size = self.spec[MASK].shape[0]
        elements = islice(chain(self.ahead, self.iterator), 1 if self.batched else size)
        parts = [self._rows(element) for element in elements]
        self.ahead = ()
        if not parts and not (self.pads and self.steps):
            raise StopIteration
        missing = size - sum(len(part[MASK,]) for part in parts)
        if missing and not self.pads:
            raise StopIteration
        if self.steps is not None:
            self.steps -= 1
            if not self.steps and next(self.iterator, None) is not None:
                raise EvaluationError(
                    "the Grain program has more examples than num_records says. Give their number."
                )
        if missing:
            parts.append({at: leaf[:missing] for at, leaf in leaves(padding(self.spec))})
        first, *others = parts
        if others:
            first = {at: np.concatenate([part[at] for part in parts]) for at in first}
        return tree_of(first.items())

    def _rows(self, element: Any) -> dict[Any, np.ndarray]:
        """Its arrays by path, as rows of a batch, with their mask."""
        arrays = {at: np.asarray(leaf) for at, leaf in leaves(element)}
        rows = arrays if self.batched else {at: leaf[None] for at, leaf in arrays.items()}
        count = len(next(iter(rows.values())))
        return {(MASK,): np.ones(count, np.float32), **rows}

    def get_state(self) -> Any:
        """Of Grain's iterator, after the last batch."""
        return self.iterator.get_state()

    def close(self) -> None:
        """Ends Grain's workers and threads, without waiting for them: a stalled one never ends."""
        if not self.lent:
            end = getattr(self.iterator, "close", lambda: None)
            threading.Thread(target=end, daemon=True).start()


def _checked(element: Any) -> dict[str, Any]:
    """An element, of arrays. InputError for one that cannot be in a batch."""
    if not isinstance(element, Mapping):
        raise InputError(
            f"the Grain dataset's elements are {type(element).__name__}s. They must be dicts such "
            "as {'image': ..., 'label': ...}: make them so with `map`."
        )
    arrays = mapped(np.asarray, element)
    for path, leaf in leaves(arrays):
        if leaf.dtype not in NUMBERS:
            raise InputError(
                f"the Grain dataset's {'/'.join(path)!r} is {leaf.dtype}. Batches have numbers: "
                "decode it, or leave it out, with `map`."
            )
    return arrays


def _info(spec: Mapping[str, Any], global_batch: int, epoch: bool) -> InputInfo:
    return InputInfo(spec, GRAIN, start=0, global_batch=global_batch, endless=not epoch)


def _is_batch(element: Mapping[str, Any], rows: int) -> bool:
    batched = _rows(element) == {rows}
    log.info("the Grain dataset's elements are %s", "batches" if batched else "single examples")
    return batched


def _rows(element: Mapping[str, Any]) -> set[int]:
    """The first dimensions of its arrays; 0 for a number."""
    return {leaf.shape[0] if leaf.ndim else 0 for _, leaf in leaves(element)}


def _spec(element: Mapping[str, Any], rows: int, batched: bool) -> dict[str, Any]:
    """The spec of batches of this many rows."""
    masks = {MASK: ArraySpec((rows,), RESERVED[MASK].dtype)}
    return masks | mapped(
        lambda leaf: ArraySpec((rows, *leaf.shape[batched:]), delivered(leaf.dtype)), element
    )
