"""States of tf.data programs: which can be saved and are trusted, how a run resumes with them, and which changes of a
program are noticed."""

import json
import logging
import time

import numpy as np
import pytest

from pipeline import tf_data
from pipeline.errors import FingerprintError
from pipeline.inputs import iterator_states, tf_iterator
from pipeline.shards.schema import Feature, Schema
from pipeline.tf_cpu import tf

BATCH, STOP, END = 8, 60, 120  # batches; an epoch has 13

Data = tf.data.Dataset


def numbers(count=107):
    return Data.from_tensor_slices({"x": np.arange(count)})


def interleaved(cycle=3, parallel: int | None = 2, **options):
    shards = Data.range(4).interleave(
        lambda shard: Data.range(26).map(lambda number: {"x": number * 4 + shard}),
        cycle_length=cycle,
        num_parallel_calls=parallel,
        **options,
    )
    return shards.shuffle(32, seed=2)


def of_table(second=30):
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [10, second]), -1)
    return numbers().map(lambda e: {"x": table.lookup(tf.cast(e["x"] % 4, tf.int32))})


def tripled(e):
    return {"x": e["x"] * 3}


def drawn(e):
    return {"x": e["x"] + tf.random.uniform([], 0, 9, tf.int64)}


def in_python(e, **options):
    x = tf.numpy_function(lambda x: x + 1, [e["x"]], tf.int64, **options)
    return {"x": tf.ensure_shape(x, ())}


def random_in_python(e):
    x = tf.numpy_function(lambda x: x + np.random.randint(99), [e["x"]], tf.int64, stateful=False)
    return {"x": tf.ensure_shape(x, ())}


TRUSTED = {
    "shuffle": lambda _: numbers().shuffle(1000, seed=1),
    "interleave": lambda _: interleaved(),
    "map, AUTOTUNE": lambda _: numbers().shuffle(20, seed=1).map(tripled, tf.data.AUTOTUNE),
    "cache": lambda _: numbers().map(tripled).cache().shuffle(50, seed=3),
    "filter": lambda _: numbers().filter(lambda e: e["x"] % 3 > 0),
    "scan": lambda _: numbers().scan(np.int64(0), lambda s, e: (s + 1, {"x": e["x"] + s})),
    "lookup table": lambda _: of_table(),
    "mixture": lambda _: Data.sample_from_datasets(
        [numbers(50).repeat(), numbers(60).repeat()], [0.7, 0.3], seed=3
    ),
    "Python without a state": lambda _: numbers().map(lambda e: in_python(e, stateful=False)),
    "stateless random": lambda _: numbers().map(
        lambda e: {"x": tf.random.stateless_uniform([], [1, e["x"]], 0, 99, tf.int32)}
    ),
    "examples": lambda shards: tf_data.examples(shards, shuffle=True, window_records=16).map(
        lambda e: {"x": e["_index"]}
    ),
}
STATEFUL = "is stateful"
NOT_TRUSTED = {
    "generator": (
        lambda: Data.from_generator(
            lambda: ({"x": i} for i in range(107)),
            output_signature={"x": tf.TensorSpec((), tf.int64)},
        ),
        STATEFUL,
    ),
    "Python": (lambda: numbers().map(in_python), STATEFUL),
    "random": (lambda: numbers().map(drawn), STATEFUL),
    "shuffles inside": (
        lambda: Data.range(4).flat_map(lambda i: numbers().shuffle(9, seed=i)),
        STATEFUL,
    ),
    "not deterministic": (
        lambda: numbers().map(tripled, 2, deterministic=False),
        "it says deterministic=False",
    ),
    "not deterministic inside": (
        lambda: Data.range(4).flat_map(lambda i: interleaved(deterministic=False)),
        "it says deterministic=False",
    ),
    "a shuffle without a seed": (lambda: numbers().shuffle(1000), "has no seed"),
    "a mixture without a seed": (
        lambda: Data.sample_from_datasets([numbers().repeat(), numbers().repeat()]),
        "has no seed",
    ),
    "random in Python": (lambda: numbers().map(random_in_python), "delivers other batches"),
}
CHANGES = {
    "a seed": (interleaved, lambda: interleaved().shuffle(2, seed=3)),
    "another seed": (
        lambda: numbers().shuffle(20, seed=1),
        lambda: numbers().shuffle(20, seed=2),
    ),
    "a larger buffer": (
        lambda: numbers().shuffle(20, seed=1),
        lambda: numbers().shuffle(21, seed=1),
    ),
    "a constant of a map": (
        lambda: numbers().map(lambda e: {"x": tf.minimum(e["x"], 90)}),
        lambda: numbers().map(lambda e: {"x": tf.minimum(e["x"], 91)}),
    ),
    "a filter": (numbers, lambda: numbers().filter(lambda e: e["x"] != 100)),
    "the cycle of an interleave": (lambda: interleaved(3), lambda: interleaved(4)),
    "fewer records": (numbers, lambda: numbers(99)),
    "a record": (numbers, lambda: numbers().map(lambda e: {"x": e["x"] + (e["x"] // 106)})),
    "an entry of a table": (of_table, lambda: of_table(31)),
    "a part that is left out": (numbers, lambda: numbers().concatenate(numbers(1))),
}


QUICK = ("shuffle", "examples", "random", "a shuffle without a seed", "random in Python", "a seed")


def rows(table):
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in table]


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(iterator_states, "EVERY_SECONDS", 0.0)


def program(dataset):
    return tf_data.training_batches(dataset, BATCH).infeed_input


def run(source, position=0, end=END, stop=None):
    """The batches from `position` to `end`, and what a checkpoint after `stop` has: its JSON and the state."""
    batches = source.batches(position)
    made, saved = [], None
    for at in range(position + 1, end + 1):
        made.append(next(batches)["x"].tolist())
        batches.save_state(at - 1 - position, True)
        if at == stop:
            saved = checkpoint_of(source, at)
    batches.close()
    return made, saved


def checkpoint_of(source, at):
    until = time.monotonic() + 10
    states = source.iterator_states
    while not states._trusted and not states._obstacle and time.monotonic() < until:
        time.sleep(0.01)
    return json.loads(json.dumps(source.state(at))), source.pinned


def resumed(source, saved):
    state, pinned = saved
    position = source.restore(state)
    if pinned:
        source.resume_with(pinned.data)
    return position


@pytest.fixture(scope="module")
def shards(write_dataset, tmp_path_factory):
    records = [{"n": n} for n in range(107)]
    schema = Schema("test", {"n": Feature("int64", shape=())})
    split = {"train": [records[:50], records[50:]]}
    return write_dataset(tmp_path_factory.mktemp("shards"), split, schema)


@pytest.mark.parametrize("kind", rows(TRUSTED))
def test_a_run_resumes_with_a_state_that_is_tested_to_be_exact(kind, request, caplog):
    shards = request.getfixturevalue("shards") if kind == "examples" else None
    straight, saved = run(program(TRUSTED[kind](shards)), stop=STOP)
    assert saved[1] is not None, caplog.text
    again = program(TRUSTED[kind](shards))
    with caplog.at_level(logging.DEBUG, "pipeline"):
        rest, later = run(again, resumed(again, saved), stop=STOP + 30)
    assert rest == straight[STOP:]
    assert "runs from its beginning" not in caplog.text
    assert later[1].batches > STOP  # it is saved again, and so on


@pytest.mark.parametrize("kind", rows(NOT_TRUSTED))
def test_a_program_whose_state_would_not_tell_how_it_continues_is_not_trusted(kind, caplog):
    make, why = NOT_TRUSTED[kind]
    _, (state, pinned) = run(program(make()), stop=STOP)
    assert (pinned, state["iterator"]) == (None, None)
    (line,) = [r.getMessage() for r in caplog.records if "will run again" in r.getMessage()]
    assert why in line


def test_a_state_that_is_too_large_is_not_kept_and_the_log_says_so_at_the_start(
    monkeypatch, caplog
):
    monkeypatch.setattr(iterator_states, "MOST_BYTES", 100)
    _, (_, pinned) = run(program(numbers().shuffle(1000, seed=1)), stop=STOP)
    assert pinned is None
    assert "more than 100 B: what shuffles and prefetches hold" in caplog.text


def test_a_program_with_large_arrays_in_its_graph_has_no_state(monkeypatch, caplog):
    monkeypatch.setattr(tf_iterator, "MOST_BYTES", 1000)
    _, (_, pinned) = run(program(numbers()), stop=STOP)
    assert pinned is None
    assert "its graph, which has the arrays of from_tensor_slices, is more than" in caplog.text


@pytest.mark.parametrize("change", rows(CHANGES))
def test_a_changed_program_is_run_again_and_refused(change, caplog):
    before, after = CHANGES[change]
    _, saved = run(program(before()), stop=STOP)
    assert saved[1]
    other = program(after())
    with pytest.raises(FingerprintError, match="the first 60 batches of a tf.data program"):
        run(other, resumed(other, saved))
    assert "its graph is not that of the run" in caplog.text


@pytest.mark.slow
def test_what_neither_the_graph_nor_the_first_batch_shows_is_not_noticed(tmp_path):
    """As docs/frameworks.md says."""
    path = str(tmp_path / "numbers")

    def read(offset):
        def added(x):
            return x + offset * (x > 100)

        def parsed(record):
            x = tf.numpy_function(added, [tf.strings.to_number(record, tf.int64)], tf.int64, False)
            return {"x": tf.ensure_shape(x, ())}

        return program(tf.data.TFRecordDataset(path).map(parsed))

    def write(last):
        with tf.io.TFRecordWriter(path) as writer:
            for number in [*range(106), last]:
                writer.write(str(number))

    write(106)
    straight, saved = run(read(0), stop=STOP)
    assert saved[1]
    for last, offset in ((200, 0), (106, 1)):
        write(last)
        again = read(offset)
        rest, _ = run(again, resumed(again, saved))
        assert rest != straight[STOP:]
