"""Batches as the hosts of a run make them, put together and compared."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.datasets import DatasetInput, Position, eval_dataset, train_dataset
from pipeline.hosts import Hosts

Batch = dict[str, np.ndarray]


def taken(
    source: DatasetInput, position: Position | None = None, count: int | None = None
) -> list[Batch]:
    """So many batches of one host, or all."""
    batches = source.batches(position)
    try:
        return list(itertools.islice(batches, count))
    finally:
        batches.close()
        assert batches.join(10)  # what it reads ahead is not counted to whoever reads next


def joined(hosts: Sequence[list[Batch]]) -> list[Batch]:
    """The global batches, from those of each host."""
    return [
        {key: np.concatenate([b[key] for b in step]) for key in step[0]}
        for step in zip(*hosts, strict=True)
    ]


def evaluated(data: Any, count: int, **options: Any) -> tuple[list[DatasetInput], list[Batch]]:
    """The inputs of this number of hosts, and their global batches."""
    inputs = [eval_dataset(data, hosts=Hosts(h, count), **options) for h in range(count)]
    return inputs, joined([taken(source) for source in inputs])


def trained(
    data: Any, count: int, state: Mapping[str, Any] | None, steps: int, **options: Any
) -> list[Batch]:
    """Global batches of this number of hosts, each of which resumes from the state; None: from the start."""
    inputs = [train_dataset(data, hosts=Hosts(h, count), **options) for h in range(count)]
    saved = json.dumps(inputs[0].state(inputs[0].start) if state is None else state)
    return joined([taken(source, source.restore(json.loads(saved)), steps) for source in inputs])


def assert_same(ours: list[Batch], theirs: list[Batch]) -> None:
    """Bit for bit."""
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert {key: (value.dtype, value.tobytes()) for key, value in a.items()} == {
            key: (value.dtype, value.tobytes()) for key, value in b.items()
        }


def rows_of(batches: list[Batch], key: str) -> np.ndarray:
    """One key of all batches."""
    return np.concatenate([b[key] for b in batches])


def crc_sum(batches: list[Batch]) -> int:
    """Of all that was delivered, modulo 2**32."""
    return int(rows_of(batches, "_crc").sum(dtype=np.uint64)) % 2**32


def by_stream(ids: np.ndarray, streams: int) -> np.ndarray:
    """[C, rows]: what each stream gave, from the ids [steps, B] of global batches."""
    return ids.reshape(len(ids), streams, -1).swapaxes(0, 1).reshape(streams, -1)


def first_epoch(ids: np.ndarray, num_records: int, streams: int) -> list[int]:
    """What the streams of "span" give until each begins again; their lengths may differ by one."""
    lengths = [
        (c + 1) * num_records // streams - c * num_records // streams for c in range(streams)
    ]
    return [
        i
        for row, length in zip(by_stream(ids, streams), lengths, strict=True)
        for i in row[:length].tolist()
    ]
