"""Sizes at the edge, as all their hosts read them from real shards: evaluation (E1-E7, E16, E17) and training order."""

import zlib
from dataclasses import dataclass

import numpy as np
import pytest
from host_batches import assert_same, crc_sum, evaluated, first_epoch, rows_of, taken, trained

from pipeline.datasets import eval_dataset, train_dataset
from pipeline.orders.order import divisors


@dataclass(frozen=True)
class Corner:
    name: str
    shards: tuple[int, ...]  # records in each
    global_batch: int
    hosts: int

    @property
    def num_records(self) -> int:
        return sum(self.shards)

    @property
    def modes(self) -> list[str]:
        return ["drop", "span"] if self.num_records >= self.global_batch else ["span"]


CORNERS = [
    Corner("one record, eight hosts", shards=(1,), global_batch=8, hosts=8),
    Corner("fewer records than the batch", shards=(3, 2), global_batch=16, hosts=4),
    Corner("fewer records than hosts, a shard each", shards=(1, 1, 1), global_batch=5, hosts=5),
    Corner("fewer shards than hosts", shards=(9, 10), global_batch=8, hosts=4),
    Corner("empty first, middle and last shards", shards=(0, 7, 0, 0, 6, 0), global_batch=4, hosts=2),
    Corner("all records in one shard of many", shards=(0, 0, 0, 0, 0, 13, 0, 0), global_batch=4, hosts=4),
    Corner("one record over a multiple of the batch", shards=(9, 8), global_batch=8, hosts=2),
    Corner("one record under a multiple of the batch", shards=(10, 5), global_batch=8, hosts=2),
    Corner("one full batch of a row a host", shards=(2, 4), global_batch=6, hosts=6),
    Corner("a prime number of records, three hosts", shards=(11, 13, 7), global_batch=6, hosts=3),
    # C = 4
    Corner("hosts that do not divide the streams", shards=(4, 1), global_batch=12, hosts=3),
    Corner("one host, a batch of one, a shard a record", shards=(1,) * 11, global_batch=1, hosts=1),
]  # fmt: skip
corners = pytest.mark.parametrize(
    "corner",
    [pytest.param(each, marks=pytest.mark.slow) if each.hosts == 8 else each for each in CORNERS],
    ids=lambda corner: corner.name,
)


@corners
def test_an_evaluation_counts_every_record_once_on_any_hosts_and_proves_it(numbers_of, corner):
    N, B = corner.num_records, corner.global_batch
    options = {"global_batch": B, "keys": ("number",), "pad_values": {"number": 2**31 - 1}}
    inputs, whole = evaluated(numbers_of(*corner.shards), corner.hosts, **options)
    # one shard, no read-ahead
    (alone,), one_host = evaluated(numbers_of(N), 1, read_ahead_bytes=1, **options)
    assert {source.steps_per_epoch for source in inputs} == {len(whole)} == {-(-N // B)}  # E3
    spec = {key: (s.shape, s.dtype) for key, s in alone.spec.items()}  # E6
    assert all({key: (v.shape, v.dtype) for key, v in b.items()} == spec for b in whole)
    mask, index = rows_of(whole, "_mask"), rows_of(whole, "_index")
    assert index[mask == 1].tolist() == list(range(N))  # E1 E5
    assert rows_of(whole, "number").tolist() == [*range(N), *[2**31 - 1] * (-N % B)]
    assert mask.tolist() == [1.0] * N + [0.0] * (-N % B)  # E2 E4
    assert set(index[mask == 0]) <= {-1}
    assert {source.info.expected_crc for source in inputs} == {crc_sum(whole)}  # E17
    assert_same(one_host, whole)  # E7


@corners
def test_training_is_the_same_on_any_hosts_from_any_position_and_its_epochs_are_exact(
    numbers_of, corner
):
    N, B = corner.num_records, corner.global_batch
    directory = numbers_of(*corner.shards)
    options = {"global_batch": B, "seed": 7, "keys": (), "window_records": 3}
    crcs = rows_of(taken(eval_dataset(directory, global_batch=1, keys=())), "_crc")
    random = np.random.default_rng(zlib.crc32(corner.name.encode()))
    others = [count for count in divisors(B) if count != corner.hosts] or [corner.hosts]
    for epochs in corner.modes:
        options["epochs"] = epochs
        source = train_dataset(directory, **options)
        streams, steps = source.state(source.start)["streams"], 2 * source.steps_per_epoch + 1
        stop = int(random.integers(0, 3 * source.steps_per_epoch + 1))
        whole = trained(directory, 1, None, max(steps, stop + 4), **options)
        before = trained(directory, corner.hosts, None, stop, **options)
        state = source.state(source.advance(source.start, stop))
        after = trained(directory, int(random.choice(others)), state, 4, **options)
        assert_same(before + after, whole[: stop + 4])
        for batch in whole:
            assert batch["_mask"].tolist() == [1.0] * B
            np.testing.assert_array_equal(batch["_crc"], crcs[batch["_index"]])
        ids = np.stack([batch["_index"] for batch in whole])
        if epochs == "drop":
            for epoch in range(2):
                seen = ids[epoch * (N // B) : (epoch + 1) * (N // B)].ravel().tolist()
                assert len(seen) == len(set(seen)) == N // B * B
        else:
            assert sorted(first_epoch(ids, N, streams)) == list(range(N))
