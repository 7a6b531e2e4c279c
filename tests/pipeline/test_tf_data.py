"""tf.data on both sides: infeed's batches as a dataset, and exact batches of any program."""

import inspect
import itertools
import json
import logging
import threading
import time

import numpy as np
import pytest
from host_batches import assert_same, taken
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples

from pipeline import datasets, tf_data
from pipeline.datasets import eval_dataset, train_dataset
from pipeline.errors import (
    BatchSizeError,
    EmptySplitError,
    EvaluationError,
    FingerprintError,
    InputError,
    OptionError,
)
from pipeline.hosts import Hosts
from pipeline.inputs.program import Program
from pipeline.ops import DecodeJpeg, RandomShift
from pipeline.tf_cpu import tf

OPS = (DecodeJpeg("image/encoded", shape=(8, 8, 1)), RandomShift(pixels=2))
HOSTS = [Hosts(), Hosts(1, 2), Hosts(3, 4), Hosts(0, 2, rows=(range(6, 8), range(1)))]


def numbers(count):
    return tf.data.Dataset.from_tensor_slices({"x": np.arange(count)})


@pytest.mark.parametrize(
    ("hosts", "start_step"), list(zip(HOSTS, [0, 5, 0, 5], strict=True)), ids=repr
)
def test_training_has_the_bits_of_datasets_from_any_step(images, hosts, start_step):
    options = {"global_batch": 8, "ops": OPS, "hosts": hosts, "seed": 5}
    source = train_dataset(images, **options)
    dataset = tf_data.train_dataset(images, start_step=start_step, **options)
    position = source.advance(source.start, start_step)
    assert_same(list(dataset.take(7).as_numpy_iterator()), taken(source, position, 7))
    assert_same(taken(dataset.infeed_input, count=7), taken(source, position, 7))
    assert_same(
        taken(train_dataset(images, start_step=start_step, **options), count=7),
        taken(source, position, 7),
    )
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY


@pytest.mark.parametrize("hosts", HOSTS, ids=repr)
def test_an_evaluation_has_the_bits_of_datasets_and_its_length(images, hosts):
    options = {"global_batch": 8, "ops": OPS[:1], "hosts": hosts, "on_error": "mask"}
    dataset, source = tf_data.eval_dataset(images, **options), eval_dataset(images, **options)
    assert len(dataset) == source.steps_per_epoch
    assert_same(list(dataset.as_numpy_iterator()), taken(source))
    assert all(leaf.shape.is_fully_defined() for leaf in dataset.element_spec.values())


def test_the_tf_datasets_check_their_options_and_carry_their_input_until_mapped(images):
    with pytest.raises(TypeError, match="global_bacth"):
        tf_data.train_dataset(images, global_bacth=8)
    with pytest.raises(
        AttributeError, match=r"start: this train_dataset has no batch size\. Give it one"
    ):
        tf_data.train_dataset(images)
    with pytest.raises(OptionError, match="start_step=-1 must be at least 0"):
        tf_data.train_dataset(images, global_batch=8, start_step=-1)
    dataset = tf_data.eval_dataset(images, global_batch=8, keys=())
    assert isinstance(dataset.infeed_input, datasets.DatasetInput)
    assert not hasattr(dataset.map(lambda batch: batch), "infeed_input")
    assert "ceil(N / global_batch) batches" in tf_data.eval_dataset.__doc__


def test_a_dataset_of_an_input_carries_the_input_only_from_its_start(images):
    source = eval_dataset(images, global_batch=8, keys=())
    assert tf_data.dataset_of(source).infeed_input is source
    assert not hasattr(tf_data.dataset_of(source, source.advance(source.start, 1)), "infeed_input")
    for name in ("train_dataset", "eval_dataset"):
        made, of_arrays = (
            inspect.signature(getattr(module, name)) for module in (tf_data, datasets)
        )
        assert made.return_annotation is tf.data.Dataset
        assert made.parameters == of_arrays.parameters


@pytest.mark.parametrize(
    "make",
    [
        lambda images, hosts: tf_data.train_dataset(images, global_batch=8, keys=(), hosts=hosts),
        lambda images, hosts: tf_data.eval_dataset(images, global_batch=8, keys=(), hosts=hosts),
        lambda images, hosts: tf_data.training_batches(numbers(9), 8, hosts),
        lambda images, hosts: tf_data.evaluation_batches(numbers(9), 8, hosts),
    ],
)
def test_tensorflow_does_not_cut_the_rows_of_a_host_again(images, make):
    policy = tf.data.experimental.AutoShardPolicy
    for hosts, expected in ((Hosts(), policy.AUTO), (Hosts(1, 2), policy.OFF)):
        assert make(images, hosts).options().experimental_distribute.auto_shard_policy == expected


def test_the_log_says_what_a_complete_program_costs_on_several_hosts(caplog):
    with caplog.at_level(logging.INFO, "pipeline"):
        tf_data.evaluation_batches(numbers(9), 8)
        tf_data.evaluation_batches(numbers(9), 8, Hosts(1, 2), per_host=True)
        assert not caplog.text
        tf_data.evaluation_batches(numbers(9), 8, Hosts(1, 2))
    assert "each of 2 hosts runs this tf.data program completely" in caplog.text


@pytest.mark.slow
@settings(max_examples=examples(20), deadline=None)
@given(
    count=st.integers(1, 70),
    hosts=st.sampled_from([1, 2, 4]),
    batch=st.integers(1, 5).map(lambda n: 4 * n),
)
def test_an_evaluation_of_any_program_has_every_example_once_on_any_hosts(count, hosts, batch):
    def kept(batches):
        return [
            x for b in batches for x, real in zip(b["x"].tolist(), b["_mask"], strict=True) if real
        ]

    made = [
        tf_data.evaluation_batches(numbers(count), batch, Hosts(i, hosts)) for i in range(hosts)
    ]
    assert {len(dataset) for dataset in made} == {
        dataset.infeed_input.info.steps_per_epoch for dataset in made
    }
    for passes in (
        [list(d.as_numpy_iterator()) for d in made],
        [list(d.infeed_input.batches(0)) for d in made],
    ):
        steps = [kept(of_hosts) for of_hosts in zip(*passes, strict=True)]
        assert steps == [list(range(count))[at : at + batch] for at in range(0, count, batch)]
    assert {dataset.infeed_input.info.num_records for dataset in made} == {count}


def test_training_batches_repeat_the_program_on_every_host():
    batches = tf_data.training_batches(numbers(10), 4)
    assert batches.element_spec["x"].shape == [4]
    batches = batches.take(5).as_numpy_iterator()
    assert [x for batch in batches for x in batch["x"]] == [*range(10), *range(10)]
    for hosts, expected in ((Hosts(0, 2), [2, 3]), (Hosts(1, 2), [4, 5])):
        dataset = tf_data.training_batches(numbers(10), 4, hosts, start_step=3)
        assert next(dataset.as_numpy_iterator())["x"].tolist() == expected
        assert next(dataset.infeed_input.batches(3))["x"].tolist() == expected
        assert (dataset.element_spec["x"].shape, dataset.infeed_input.info.start) == ([2], 3)
        assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY


def test_elements_may_be_nested_or_tuples_and_may_have_a_mask_of_their_own():
    pairs = numbers(3).map(lambda e: (e["x"], {"y": tf.cast(e["x"], tf.float32)}))
    (batch,) = tf_data.evaluation_batches(pairs, 4).as_numpy_iterator()
    assert (batch[0].tolist(), batch[1]["y"].tolist(), batch[2].tolist()) == (
        [0, 1, 2, 0],
        [0, 1, 2, 0],
        [1, 1, 1, 0],
    )
    weighted = numbers(3).map(lambda e: (e["x"], e["x"], 0.5))
    (batch,) = tf_data.evaluation_batches(weighted, 4).as_numpy_iterator()
    assert batch[2].tolist() == [0.5, 0.5, 0.5, 0]
    masked = numbers(3).map(
        lambda e: {"n": {"x": e["x"] == 1}, "_mask": tf.cast(e["x"] > 0, tf.float32)}
    )
    (batch,) = tf_data.evaluation_batches(masked, 4).as_numpy_iterator()
    assert (batch["n"]["x"].tolist(), batch["_mask"].tolist()) == (
        [False, True, False, False],
        [0, 1, 1, 0],
    )
    assert not hasattr(tf_data.training_batches(pairs, 4), "infeed_input")


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: tf.data.Dataset.range(9), InputError, r"elements are TensorSpec.* They must be dicts such as"),
        (lambda: numbers(9).map(lambda e: {"name": tf.as_string(e["x"])}), InputError, "dtype=tf.string.* decode,"),
        (lambda: numbers(9).batch(2), InputError, r"shape=\(None,\).* Batches are numbers of static shapes"),
        (lambda: numbers(9).repeat(), InputError, "is endless, so no epoch of it is exact. Leave out its repeat"),
        (lambda: numbers(9).take(0), EmptySplitError, "has no elements"),
    ],
)  # fmt: skip
def test_a_program_that_cannot_be_batched_exactly_is_refused(make, error, text):
    with pytest.raises(error, match=text):
        tf_data.evaluation_batches(make(), 4)


def test_batch_sizes_and_elements_that_do_not_fit_are_refused():
    for make in (tf_data.training_batches, tf_data.evaluation_batches):
        for size, hosts in ((5, Hosts(0, 2)), (0, Hosts()), (-4, Hosts())):
            with pytest.raises(BatchSizeError, match=f"global_batch={size} is not divisible"):
                make(numbers(9), size, hosts)
        with pytest.raises(
            InputError, match="dict is not a tf.data.Dataset. Give one of single examples"
        ):
            make({"x": np.arange(9)}, 4)
    with pytest.raises(OptionError, match="start_step=-1 must be at least 0"):
        tf_data.training_batches(numbers(9), 4, start_step=-1)
    wide = tf_data.training_batches(numbers(9).map(lambda e: {"x": e["x"] + 2**40}), 4)
    with pytest.raises(
        InputError, match=r"int64 numbers in 1099511627776\.\.1099511627779, which do not fit int32"
    ):
        next(wide.infeed_input.batches(0))


def resumed(make, steps):
    """The first batch of a program that resumes after that many, from what another one saved."""
    first, second = make().infeed_input, make().infeed_input
    batches = first.batches(0)
    for _ in range(steps + 3):  # a trainer reads ahead
        next(batches)
    return next(second.batches(second.restore(json.loads(json.dumps(first.state(steps))))))[
        "x"
    ].tolist()


def test_a_program_with_seeds_resumes_at_the_very_next_batch(caplog):
    def shuffled():
        return tf_data.training_batches(numbers(50).shuffle(50, seed=1), 4)

    straight = itertools.islice(shuffled().as_numpy_iterator(), 21)
    with caplog.at_level(logging.INFO, "pipeline"):
        assert resumed(shuffled, 20) == list(straight)[20]["x"].tolist()
    assert "runs from its beginning, to resume after 20 batches" in caplog.text
    assert "it dropped 20 batches in" in caplog.text


def drawn():
    return tf.random.uniform([], 0, 2**31, tf.int64)


@pytest.mark.parametrize(
    "change",
    [
        lambda own: own.shuffle(50),
        lambda own: own.map(lambda example: {"x": example["x"] + drawn()}),
        lambda own: own.map(
            lambda example: {"x": tf.where(example["x"] == 0, drawn(), example["x"])}
        ),
    ],
    ids=[
        "a shuffle without a seed",
        "random numbers without a seed",
        "a single record of the first batch",
    ],
)
def test_a_program_that_is_not_reproducible_is_refused_on_a_resume(change):
    with pytest.raises(
        FingerprintError,
        match=r"the first 20 batches .* now delivers others, .* and a seed wherever it draws",
    ):
        resumed(lambda: tf_data.training_batches(change(numbers(50)), 4), 20)


def test_a_dataset_that_reshuffles_each_iteration_is_not_resumed_by_its_own_object():
    once = tf_data.training_batches(numbers(50).shuffle(50, seed=1), 4)
    with pytest.raises(FingerprintError, match="make the dataset anew in an input_fn"):
        resumed(lambda: once, 20)
    list(itertools.islice(once.infeed_input.batches(0), 5))
    # of the pass before, without a saved position
    with pytest.raises(FingerprintError, match="the first 3 batches"):
        next(once.infeed_input.batches(3))
    kept = tf_data.training_batches(
        numbers(50).shuffle(50, seed=1, reshuffle_each_iteration=False), 4
    )
    assert len(resumed(lambda: kept, 20)) == 4


def test_the_position_of_another_input_is_refused(images):
    of_ours = train_dataset(images, global_batch=4, keys=())
    program = tf_data.training_batches(numbers(9), 4).infeed_input
    with pytest.raises(
        FingerprintError, match=r"has fingerprint='\w+', this input has fingerprint='a tf.data"
    ):
        program.restore(of_ours.state(of_ours.start))
    with pytest.raises(FingerprintError, match="has global_batch=3, this input has global_batch=4"):
        program.restore(tf_data.training_batches(numbers(9), 3).infeed_input.state(0))


@pytest.mark.parametrize("damaged", [-1, "7", 2.0, None])
def test_a_saved_position_that_is_not_a_number_of_batches_is_refused(damaged):
    program = tf_data.training_batches(numbers(9), 4).infeed_input
    with pytest.raises(
        FingerprintError, match=f"The saved position, {damaged!r}, is not a number of batches"
    ):
        program.restore(program.state(0) | {"batches": damaged})


def test_a_program_that_has_become_shorter_is_refused_on_a_resume():
    source = tf_data.training_batches(numbers(50).shuffle(50, seed=1), 4).infeed_input
    three = numbers(50).batch(4).take(3)
    shorter = Program(lambda *_: (three.as_numpy_iterator(), 0), source.info, Hosts())
    with pytest.raises(
        FingerprintError, match="the first 7 batches of a tf.data program, which now has only 3"
    ):
        next(shorter.batches(shorter.restore(source.state(7))))


@pytest.mark.parametrize("stated", [16, 48, 96, 99, 101, 200])
def test_a_stated_number_of_records_that_is_wrong_is_an_error_even_if_batches_are_full(stated):
    program = numbers(100).apply(tf.data.experimental.assert_cardinality(stated))
    with pytest.raises(
        EvaluationError, match="has another number of examples than its assert_cardinality states"
    ):
        source = tf_data.evaluation_batches(program, 16).infeed_input
        # as the trainer reads it: not to its end
        list(itertools.islice(source.batches(0), source.info.steps_per_epoch))


def test_rows_of_a_complete_batch_may_have_another_order():
    rows = (range(4, 8), range(4))
    for make in (tf_data.training_batches, tf_data.evaluation_batches):
        dataset = make(numbers(8), 8, Hosts(rows=rows))
        for batch in (next(dataset.as_numpy_iterator()), next(dataset.infeed_input.batches(0))):
            assert batch["x"].tolist() == [4, 5, 6, 7, 0, 1, 2, 3]


def test_closing_ends_the_dropping_of_batches_in_another_thread():
    read = []

    def slowly(x):
        read.append(x)
        time.sleep(0.02)
        return x

    slow = numbers(9).map(
        lambda e: {"x": tf.ensure_shape(tf.numpy_function(slowly, [e["x"]], tf.int64), [])}
    )
    batches = tf_data.training_batches(slow, 1).infeed_input.batches(10**6)
    thread = threading.Thread(target=lambda: next(batches, None), daemon=True)
    thread.start()
    while len(read) < 3:
        time.sleep(0.01)
    batches.close()
    thread.join(10)
    assert not thread.is_alive()
