"""What holds for every source of records; and, where something cannot, that it cannot, for the reason in its row."""

import functools
import json
import zlib

import host_batches
import numpy as np
import pytest
from host_batches import assert_same, by_stream, crc_sum, first_epoch, rows_of, taken
from record_sources import ABILITIES, SOURCES, Source
from sweep import SWEEP

from pipeline import tf_data
from pipeline.datasets import Mixture, eval_dataset, train_dataset
from pipeline.errors import FingerprintError, OptionError
from pipeline.hosts import Hosts
from pipeline.shards.frames import crc32c
from pipeline.sources.records import Records, weighed

N = 37
B = 8
HOSTS = (1, 2, 8) if SWEEP else (1, 4)
SEED = 2**62 + 1
sources = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
evaluable = pytest.mark.parametrize(
    "source", [s for s in SOURCES if s.evaluates], ids=lambda source: source.name
)


@pytest.fixture(scope="module")
def opened(written):
    """opened(source) -> what train_dataset takes, opened once."""
    data = {}

    def get(source: Source) -> Records | Mixture:
        if source.name not in data:
            data[source.name] = source.open(written(source))
        return data[source.name]

    return get


@pytest.fixture(scope="module")
def inputs(opened):
    """Source -> training on it."""
    options = {"global_batch": B, "epochs": "span", "seed": SEED, "keys": ()}
    return {source.name: train_dataset(opened(source), **options) for source in SOURCES}


@sources
def test_the_tf_dataset_of_a_source_has_the_bits_of_its_batches(opened, source):
    options = {"global_batch": B, "keys": ()}
    made = tf_data.train_dataset(opened(source), seed=SEED, epochs="span", start_step=3, **options)
    assert_same(list(made.take(3).as_numpy_iterator()), taken(made.infeed_input, count=3))
    if source.evaluates:
        made = tf_data.eval_dataset(opened(source), **options)
        assert_same(list(made.as_numpy_iterator()), taken(made.infeed_input))


evaluated = functools.partial(host_batches.evaluated, global_batch=B, keys=())
trained = functools.partial(host_batches.trained, global_batch=B, keys=(), seed=SEED, epochs="span")


def records_of(data: Records | Mixture) -> Records:
    return data.records if isinstance(data, Mixture) else data


def host_counts(data: Records | Mixture) -> list[int]:
    """All, but for files that have to be read whole: of these every host needs one."""
    files = records_of(data).info.whole_files
    return [count for count in HOSTS if files is None or count <= files]


def test_every_missing_ability_of_a_source_has_a_reason():
    assert len({source.name for source in SOURCES}) == len(SOURCES)
    for source in SOURCES:
        assert source.cannot.keys() <= ABILITIES.keys()
        assert all(reason and reason.strip(".") == reason for reason in source.cannot.values())


@sources
def test_records_are_what_was_written_in_any_order_and_have_places_of_their_own(source, opened):
    records = records_of(opened(source))
    assert records.info.num_records == N
    ids = np.random.default_rng(0).integers(0, N, 100)
    groups = [np.arange(N), ids[:1], ids[1:1], ids[1:]]
    for ahead in (0, 10**6):
        for group, found in zip(groups, records.read(weighed(records, groups), ahead), strict=True):
            assert [record[0] for record in found] == [source.payload(i) for i in group.tolist()]
            assert [record[1] for record in found] == [crc32c(record[0]) for record in found]
    if records.info.crcs is None:
        assert "proof" in source.cannot
    else:
        assert records.info.crcs[:].tolist() == [crc32c(source.payload(i)) for i in range(N)]
    assert len({records.where(i) for i in range(N)}) == N
    starts = records.block_starts(5)
    assert starts[0] == 0
    assert np.all(np.diff(starts) > 0)
    assert starts[-1] < N


@sources
def test_an_evaluation_counts_every_record_once_on_any_hosts_and_proves_it(source, opened):
    data = opened(source)
    if not source.evaluates:
        with pytest.raises(OptionError, match="a mixture is endless, so no epoch is exact"):
            eval_dataset(data, global_batch=B)
        return
    for batch in (B, 64):  # E9: fewer records than a batch
        (alone,), one_host = evaluated(data, 1, global_batch=batch, read_ahead_bytes=1)
        for count in host_counts(data):
            inputs, whole = evaluated(data, count, global_batch=batch)
            # E3
            assert {each.steps_per_epoch for each in inputs} == {len(whole)} == {-(-N // batch)}
            mask, index = rows_of(whole, "_mask"), rows_of(whole, "_index")
            assert index.tolist() == [*range(N), *[-1] * (-N % batch)]  # E1 E4 E5
            assert mask.tolist() == [1.0] * N + [0.0] * (-N % batch)  # E2
            # E6
            assert len({tuple((k, v.shape, v.dtype) for k, v in b.items()) for b in whole}) == 1
            assert_same(whole, one_host)  # E7
            due = {each.info.expected_crc for each in inputs}
            assert due == ({None} if "proof" in source.cannot else {crc_sum(whole)})  # E17
        assert alone.restore(alone.state(alone.start)) == alone.start == (0, 0)  # E14
        assert_same(taken(alone), one_host)
        assert_same(taken(alone, alone.advance(alone.start, 3)), one_host[3:])


@evaluable
def test_features_are_those_of_the_records(source, opened):
    if "features" in source.cannot:
        return
    _, whole = evaluated(opened(source), 2, keys=("number", "half"), pad_values={"half": np.nan})
    assert rows_of(whole, "number").tolist() == [*range(N), *[0] * (-N % B)]
    assert rows_of(whole, "half")[:N].tolist() == [i / 2 for i in range(N)]
    assert np.isnan(rows_of(whole, "half")[N:]).all()


@evaluable
@pytest.mark.parametrize("limit", [1, N // 2, N + 1])
def test_a_limit_is_the_first_records_on_any_hosts(source, opened, limit):
    data, due = opened(source), min(limit, N)
    for count in {1, host_counts(data)[-1]}:
        inputs, whole = evaluated(data, count, limit=limit)
        assert rows_of(whole, "_index").tolist() == [*range(due), *[-1] * (-due % B)]
        assert rows_of(whole, "_crc")[:due].tolist() == [
            crc32c(source.payload(i)) for i in range(due)
        ]
        expected = None if "proof" in source.cannot else crc_sum(whole)
        assert {each.info.expected_crc for each in inputs} == {expected}


@sources
@pytest.mark.parametrize("epochs", ["drop", "span"])
def test_training_is_the_same_on_any_hosts_and_its_epochs_are_exact(source, opened, epochs):
    data = opened(source)
    steps = 2 * -(-N // B) + 1
    whole = trained(data, 1, None, steps, epochs=epochs)
    for count in host_counts(data)[1:]:
        assert_same(trained(data, count, None, steps, epochs=epochs), whole)
    for batch in whole:
        assert batch["_mask"].tolist() == [1.0] * B
        assert batch["_crc"].tolist() == [
            crc32c(source.payload(i)) for i in batch["_index"].tolist()
        ]
    ids = np.stack([batch["_index"] for batch in whole])
    if "epochs" in source.cannot:
        return
    if epochs == "drop":
        for epoch in (ids[: N // B], ids[N // B : 2 * (N // B)]):
            assert len(set(epoch.ravel().tolist())) == N // B * B
    else:
        source = train_dataset(data, global_batch=B)
        streams = source.state(source.start)["streams"]
        assert sorted(first_epoch(ids, N, streams)) == list(range(N))


@sources
def test_a_run_resumes_at_any_position_on_other_hosts_and_with_another_batch_size(
    source, opened, written
):
    data, random = opened(source), np.random.default_rng(zlib.crc32(source.name.encode()))
    first = train_dataset(data, global_batch=B, seed=SEED, epochs="span", keys=())
    streams = first.state(first.start)["streams"]
    straight = trained(data, 1, None, 3 * -(-N // B) + 10)
    rows = by_stream(np.stack([batch["_index"] for batch in straight]), streams)
    for _ in range(4 if SWEEP else 1):
        stop = int(random.integers(0, 3 * -(-N // B)))
        state = json.loads(json.dumps(first.state(first.advance(first.start, stop))))
        counts = [int(count) for count in random.choice(host_counts(data), 2)]
        anew = source.open(written(source))  # as the processes do that go on
        assert_same(trained(data, counts[0], None, stop) if stop else [], straight[:stop])
        assert_same(trained(anew, counts[0], state, 3), straight[stop : stop + 3])
        batch = int(
            random.choice([streams * n for n in range(1, 6) if streams * n % counts[1] == 0])
        )
        sizes = {
            name: state[name]
            for name in ("streams", "block_records", "window_records")
            if name in state
        }
        others = trained(anew, counts[1], state, 2, global_batch=batch, **sizes)
        first_row = stop * B // streams
        then = by_stream(np.stack([b["_index"] for b in others]), streams)
        np.testing.assert_array_equal(then, rows[:, first_row : first_row + 2 * batch // streams])


@sources
def test_a_state_is_small_and_is_refused_with_any_other_data(source, inputs, written):
    mine = inputs[source.name]
    far = mine.advance(mine.start, 10**9)
    state = json.dumps(mine.state(far))
    assert len(state) < 300
    assert mine.restore(json.loads(state)) == far
    again = train_dataset(
        source.open(written(source)), global_batch=B, epochs="span", seed=SEED, keys=()
    )
    assert again.state(far) == json.loads(state)
    for other in (other for other in inputs.values() if other is not mine):
        same = mine.info.fingerprint == other.info.fingerprint
        if same and other.state(far) == json.loads(state):  # the same data, through a cache
            assert other.restore(json.loads(state)) == far
            continue
        text = (
            "the order of records differs|it is not from"
            if same
            else f"data {mine.info.fingerprint}; .* is {other.info.fingerprint}"
        )
        with pytest.raises(FingerprintError, match=text):
            other.restore(json.loads(state))
    with pytest.raises(FingerprintError, match="belongs to data 0000; "):
        mine.restore(json.loads(state) | {"fingerprint": "0000"})


@sources
def test_more_hosts_than_whole_files_are_refused_with_what_to_do(source, opened):
    files = records_of(opened(source)).info.whole_files
    if files is not None:
        with pytest.raises(
            OptionError, match=rf"{files + 1} hosts cannot share {files} files .* infeed index"
        ):
            train_dataset(opened(source), global_batch=files + 1, hosts=Hosts(0, files + 1))
