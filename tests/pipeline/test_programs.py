"""Programs of tf.data and Grain as inputs: one table of kinds, and what each of them promises."""

import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import grain as infeed_grain
from pipeline import tf_data
from pipeline.errors import EmptySplitError, EvaluationError, FingerprintError, InputError
from pipeline.hosts import ONE_HOST, Hosts
from pipeline.inputs.program import Program
from pipeline.tf_cpu import tf

RECORDS = 53
BATCH = 8
FEW = grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)  # by default 16 threads read 500


def example(number: Any) -> dict[str, Any]:
    return {"x": np.int64(number), "nested": {"pixels": np.full(3, number, np.uint8)}}


def places(count: int | None = None, seed: int | None = None) -> grain.MapDataset:
    dataset = grain.MapDataset.range(RECORDS if count is None else count)
    return (dataset if seed is None else dataset.shuffle(seed=seed)).map(example)


def of_host(dataset: Any, hosts: Hosts) -> Any:
    return dataset[hosts.index :: hosts.count]


def tensors() -> tf.data.Dataset:
    numbers = np.arange(RECORDS)
    return tf.data.Dataset.from_tensor_slices(
        {"x": numbers, "nested": {"pixels": np.repeat(numbers, 3).reshape(-1, 3)}}
    ).map(lambda e: {"x": e["x"], "nested": {"pixels": tf.cast(e["nested"]["pixels"], tf.uint8)}})


def number_on(hosts: Hosts) -> int:
    return len(range(hosts.index, RECORDS, hosts.count))


def tf_input(make: Callable, *args: Any, **options: Any) -> Program:
    return make(*args, **options).infeed_input


def loader(hosts: Hosts, seed: int, epochs: int | None) -> grain.DataLoader:
    # Not with ShardOptions: 52 of 53 records are then on two hosts (grain 0.2.18).
    numbers = np.arange(hosts.index, RECORDS, hosts.count)
    return grain.DataLoader(
        data_source=numbers,
        sampler=grain.samplers.IndexSampler(
            len(numbers), shuffle=epochs is None, seed=seed, num_epochs=epochs
        ),
        operations=[_Example()],
        read_options=FEW,
    )


class _Example(grain.transforms.Map):
    def map(self, element: Any) -> dict[str, Any]:
        return example(element)


@dataclass(frozen=True)
class Kind:
    """training(hosts, seed) and evaluation(hosts): inputs of a host. program: what its InputInfo says."""

    training: Callable[[Hosts, int], Program]
    evaluation: Callable[[Hosts], Program]
    program: str


def own_tensors(hosts: Hosts) -> tf.data.Dataset:
    return tensors().shard(hosts.count, hosts.index)


def own_places(hosts: Hosts) -> grain.IterDataset:
    return of_host(places(), hosts).to_iter_dataset(FEW)


def own_shuffled(hosts: Hosts, seed: int) -> grain.IterDataset:
    return of_host(places(seed=seed), hosts).repeat().to_iter_dataset(FEW)


def of_tensorflow(training: Callable, evaluation: Callable, program: str) -> Kind:
    """The kind of these programs of tf.data, by hosts and seed, and by hosts."""
    own = {"per_host": program == "own"}
    return Kind(
        lambda hosts, seed: tf_input(
            tf_data.training_batches, training(hosts, seed), BATCH, hosts, **own
        ),
        lambda hosts: tf_input(tf_data.evaluation_batches, evaluation(hosts), BATCH, hosts, **own),
        program,
    )


def of_grain(training: Callable, evaluation: Callable, program: str) -> Kind:
    """The same of Grain."""

    def evaluated(hosts: Hosts) -> Program:
        known = {"num_records": number_on(hosts)} if program == "own" else {}
        return infeed_grain.evaluation_batches(evaluation(hosts), BATCH, hosts, **known)

    return Kind(
        lambda hosts, seed: infeed_grain.training_batches(training(hosts, seed), BATCH, hosts),
        evaluated,
        program,
    )


KINDS = {
    "tf.data, complete": of_tensorflow(
        lambda _, seed: tensors().shuffle(100, seed=seed), lambda _: tensors(), "complete"
    ),
    "tf.data, per host": of_tensorflow(
        lambda hosts, seed: own_tensors(hosts).shuffle(100, seed=seed), own_tensors, "own"
    ),
    "MapDataset": of_grain(lambda _, seed: places(seed=seed), lambda _: places(), "rows"),
    "MapDataset of batches": of_grain(
        lambda _, seed: places(seed=seed).repeat().batch(BATCH),
        lambda _: places().batch(BATCH),
        "complete",
    ),
    "IterDataset": of_grain(own_shuffled, own_places, "own"),
    "IterDataset of batches": of_grain(
        lambda hosts, seed: own_shuffled(hosts, seed).batch(BATCH // hosts.count),
        lambda hosts: own_places(hosts).batch(BATCH // hosts.count),
        "own",
    ),
    "DataLoader": of_grain(
        lambda hosts, seed: loader(hosts, seed, None), lambda hosts: loader(hosts, 0, 1), "own"
    ),
    "an iterator": of_grain(
        lambda hosts, seed: iter(own_shuffled(hosts, seed)),
        lambda hosts: iter(own_places(hosts)),
        "own",
    ),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def as_agreed(programs: list[Program]) -> list[Program]:
    """What hosts of a session make of them."""
    if programs[0].info.steps_per_epoch is not None:
        return programs
    counts = [program.info.host_records or 0 for program in programs]
    for program in programs:
        program.agree_on(counts)
    return programs


def saved(program: Program, position: int) -> dict[str, Any]:
    return json.loads(json.dumps(program.state(position)))


@pytest.mark.parametrize("count", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_an_epoch_has_every_example_once_in_equally_many_full_batches_on_every_host(kind, count):
    programs = as_agreed([kind.evaluation(Hosts(host, count)) for host in range(count)])
    steps = programs[0].info.steps_per_epoch
    seen = []
    for program in programs:
        assert program.info.program == kind.program
        assert (program.info.num_records, program.info.steps_per_epoch) == (RECORDS, steps)
        for _ in range(2):  # any pass is complete
            begun = program.batches(0)
            batches = list(begun)
            begun.close()
        assert len(batches) == steps
        for batch in batches:
            assert {batch["x"].shape, batch["_mask"].shape} == {(BATCH // count,)}
            assert (batch["x"].dtype, batch["nested"]["pixels"].dtype) == (np.int32, np.uint8)
            real = batch["_mask"] > 0
            assert (batch["nested"]["pixels"][real] == batch["x"][real, None]).all()
            assert not batch["x"][~real].any()
            seen += batch["x"][real].tolist()
    assert sorted(seen) == list(range(RECORDS))


@pytest.mark.parametrize(
    "position", [7, *(pytest.param(at, marks=pytest.mark.slow) for at in (1, 20))]
)
def test_a_run_resumes_at_the_very_next_batch(kind, position):
    program = kind.training(ONE_HOST, 1)
    batches = program.batches(0)
    straight = [next(batches)["x"].tolist() for _ in range(25)]
    batches.close()
    assert {x for batch in straight for x in batch} <= set(range(RECORDS))
    resumed = kind.training(ONE_HOST, 1)
    again = resumed.batches(resumed.restore(saved(program, position)))
    assert [next(again)["x"].tolist() for _ in range(25 - position)] == straight[position:]
    assert saved(resumed, 22) == saved(program, 22)
    again.close()


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("change", ["another seed", "fewer records"])
def test_another_program_is_noticed_at_the_first_batch_of_a_resume(
    kind, change, count, monkeypatch
):
    hosts = [Hosts(host, count) for host in range(count)]
    trained = [kind.training(host, 1) for host in hosts]
    for program in trained:  # no further than to the checkpoint
        list(itertools.islice(program.batches(0), 10))
    states = {"hosts": [saved(program, 10) for program in trained]}
    resumed = [kind.training(host, 1) for host in hosts]
    for program in resumed:  # preempted before it has read a batch
        program.batches(program.restore(states))
    assert [saved(program, 10) for program in resumed] == states["hosts"]
    if change == "fewer records":
        monkeypatch.setattr(sys.modules[__name__], "RECORDS", 45)
    noticed = (
        r"the first 10 batches of a .* program, which|Grain does not take the saved state: Sampler"
    )
    for host in hosts:
        other = kind.training(host, 2 if change == "another seed" else 1)
        with pytest.raises(FingerprintError, match=noticed):
            next(other.batches(other.restore(states)))


def test_hosts_resume_each_at_its_own_position_and_only_shared_examples_on_other_numbers(kind):
    programs = [kind.training(Hosts(host, 2), 1) for host in range(2)]
    straight = [list(itertools.islice(program.batches(0), 12)) for program in programs]
    states = {"hosts": [saved(program, 10) for program in programs]}
    for host, batches in enumerate(straight):
        again = kind.training(Hosts(host, 2), 1)
        first = next(again.batches(again.restore(states)))
        assert first["x"].tolist() == batches[10]["x"].tolist()
    if kind.program == "complete":  # host 0 saves for all
        other = kind.training(Hosts(1, 2), 2)
        with pytest.raises(FingerprintError, match="which now delivers others"):
            next(other.batches(other.restore(states["hosts"][0])))
    alone = kind.training(ONE_HOST, 1)
    if kind.program == "own":
        with pytest.raises(FingerprintError, match="that of 2 hosts, each with records of its own"):
            alone.restore(states)
    else:
        both = next(alone.batches(alone.restore(states)))["x"].tolist()
        assert both == [x for batches in straight for x in batches[10]["x"].tolist()]


def test_an_iterator_with_more_or_fewer_examples_than_stated_is_noticed():
    def evaluation(stated: int) -> Program:
        dataset = places(64).to_iter_dataset(FEW)
        return infeed_grain.evaluation_batches(dataset, BATCH, num_records=stated)

    assert len(list(evaluation(64).batches(0))) == 8
    with pytest.raises(EvaluationError, match="has more examples than num_records says"):
        list(evaluation(48).batches(0))
    masks = [batch["_mask"] for batch in evaluation(80).batches(0)]
    assert (len(masks), np.sum(masks)) == (10, 64)  # which the trainer compares with 80


def test_a_filter_makes_the_number_unknown_and_is_refused_where_rows_have_places():
    even = places().filter(lambda element: element["x"] % 2 == 0)
    program = infeed_grain.evaluation_batches(even.to_iter_dataset(FEW), BATCH)
    assert program.info.num_records is None
    assert sum(int(batch["_mask"].sum()) for batch in program.batches(0)) == 27
    with pytest.raises(InputError, match=r"element 1 of the Grain dataset is None, as a filter"):
        next(infeed_grain.training_batches(even, BATCH).batches(0))


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: infeed_grain.training_batches(places(0), BATCH), EmptySplitError, "no elements"),
        (
            lambda: infeed_grain.evaluation_batches(places().repeat(), BATCH),
            InputError,
            "endless, so no epoch of it is exact. Leave out its repeat",
        ),
        (
            lambda: infeed_grain.evaluation_batches(
                places().to_iter_dataset(FEW), BATCH, Hosts(0, 2)
            ),
            InputError,
            "the number of records is unknown",
        ),
        (
            lambda: infeed_grain.training_batches(grain.MapDataset.range(9), BATCH),
            InputError,
            r"elements are ints\. They must be dicts",
        ),
        (
            lambda: infeed_grain.training_batches(
                grain.MapDataset.range(9).map(lambda i: {"name": str(i)}), BATCH
            ),
            InputError,
            "'name' is <U1. Batches have numbers",
        ),
        (
            lambda: tf_data.evaluation_batches(
                tensors().filter(lambda e: e["x"] > 3), BATCH, Hosts(0, 2), per_host=True
            ),
            InputError,
            "the number of elements is unknown, and hosts",
        ),
        (
            lambda: tf_data.training_batches(
                tensors(), BATCH, Hosts(0, 2, rows=(range(8),)), per_host=True
            ),
            InputError,
            "host 0 of 2 delivers 8 of 8 rows, which it shares with others",
        ),
    ],
)
def test_what_cannot_be_exact_or_batched_is_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


@pytest.mark.slow
@settings(max_examples=20)
@given(
    count=st.integers(1, 60),
    hosts=st.sampled_from([1, 2, 4]),
    batch=st.sampled_from([4, 8, 12]),
    start=st.integers(0, 9),
)
def test_rows_of_a_map_dataset_do_not_depend_on_the_number_of_hosts(count, hosts, batch, start):
    def steps(index: int, of: int) -> list[list[int]]:
        program = infeed_grain.training_batches(places(count, seed=3), batch, Hosts(index, of))
        batches = program.batches(start)
        made = [next(batches)["x"].tolist() for _ in range(3)]
        batches.close()
        return made

    joined = [
        [x for rows in step for x in rows]
        for step in zip(*(steps(index, hosts) for index in range(hosts)), strict=True)
    ]
    assert joined == steps(0, 1)
