"""States of tf.data programs: which can be saved and are trusted, how a run resumes with them, and which changes of a
program are noticed."""

import json
import logging
import re
import tempfile
import time

import numpy as np
import pytest

from pipeline import tf_data
from pipeline.errors import FingerprintError
from pipeline.inputs import exact_ops, iterator_states, tf_iterator
from pipeline.inputs.exact_ops import every_node
from pipeline.inputs.iterator_states import IteratorState, IteratorStates
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


def with_options(dataset, **named):
    options = tf.data.Options()
    for name, value in named.items():
        setattr(options, name, value)
    return dataset.with_options(options)


def ignoring(dataset):
    ignore = tf.data.experimental.ExternalStatePolicy.IGNORE
    return with_options(dataset, experimental_external_state_policy=ignore)


def twice(dataset):
    return dataset.concatenate(dataset.filter(lambda e: e["x"] % 2 > 0))


def random_in_python(e):
    x = tf.numpy_function(lambda x: x + np.random.randint(99), [e["x"]], tf.int64, stateful=False)
    return {"x": tf.ensure_shape(x, ())}


def lines(shards):
    """The manifest's lines, twice, each as a number."""
    return tf.data.TextLineDataset([f"{shards}/manifest.json"] * 2).map(tf.strings.length)


def of_files(shards):
    """What four readers of files deliver together."""
    (train,) = tf.io.gfile.glob(f"{shards}/train-00000*")
    pieces = tf.data.FixedLengthRecordDataset([f"{shards}/manifest.json"], 1)
    records = tf.data.TFRecordDataset([train, train])
    each = Data.from_tensors(train).repeat().interleave(tf.data.TFRecordDataset, 2, 3)
    read = Data.zip(lines(shards), *(it.map(tf.strings.length) for it in (pieces, records, each)))
    return read.map(lambda *lengths: {"x": tf.stack(lengths)})


def parts():
    """Some of the numbers, a few of them in other places, as many as it states."""
    few = numbers().skip(7).take(80).shard(2, 1).take_while(lambda e: e["x"] < 80)
    count = tf.data.experimental.assert_cardinality(36 + 107)
    return few.concatenate(numbers()).apply(count)


def windows(dataset):
    """Sums of windows, whose elements become batches of several kinds."""
    summed = dataset.window(5, shift=2).flat_map(lambda w: w["x"].padded_batch(5, [])).unbatch()
    grouped = summed.group_by_window(lambda x: x % 3, lambda _, w: w.batch(4), window_size=4)
    together = grouped.unbatch().batch(3, num_parallel_calls=2).unbatch()
    return together.apply(tf.data.experimental.map_and_batch(lambda x: {"x": x}, 2)).unbatch()


def without_errors():
    inverses = numbers().map(
        lambda e: {"x": tf.strings.to_number(tf.gather(["1", "a"], e["x"] % 2))}
    )
    return inverses.ignore_errors().enumerate().map(lambda i, _: {"x": i})


TRUSTED = {
    "shuffle": lambda _: numbers().shuffle(1000, seed=1),
    "interleave": lambda _: interleaved(),
    "interleave, one after another": lambda _: interleaved(parallel=None),
    "files": of_files,
    "parts": lambda _: parts(),
    "windows": lambda _: windows(numbers()),
    "map, AUTOTUNE": lambda _: numbers().shuffle(20, seed=1).map(tripled, tf.data.AUTOTUNE),
    "cache": lambda _: numbers().map(tripled).cache().shuffle(50, seed=3),
    "filter": lambda _: numbers().filter(lambda e: e["x"] % 3 > 0),
    "scan": lambda _: numbers().scan(np.int64(0), lambda s, e: (s + 1, {"x": e["x"] + s})),
    "errors that are ignored": lambda _: without_errors(),
    "lookup table": lambda _: of_table(),
    "mixture": lambda _: Data.sample_from_datasets(
        [numbers(50).repeat(), numbers(60).repeat()], [0.7, 0.3], seed=3
    ),
    "mixture, another in each epoch": lambda _: Data.sample_from_datasets(
        [numbers(50), numbers(60)], None, 3, True, rerandomize_each_iteration=True
    ),
    "stateless random": lambda _: numbers().map(
        lambda e: {"x": tf.random.stateless_uniform([], [1, e["x"]], 0, 99, tf.int32)}
    ),
    "ragged, sparse and texts": lambda _: (
        numbers()
        .map(
            lambda e: (
                tf.ragged.range(e["x"] % 5 + 1),
                tf.sparse.eye(3),
                tf.strings.as_string(e["x"]),
            )
        )
        .shuffle(30, seed=1)
        .map(
            lambda r, s, t: {
                "x": tf.size(r) + tf.size(s.values) + tf.strings.to_number(t, tf.int32)
            }
        )
    ),
    "examples": lambda shards: tf_data.examples(shards, shuffle=True, window_records=16).map(
        lambda e: {"x": e["_index"]}
    ),
}
STATEFUL = "whose state tf.data may not save exactly"
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
        "says deterministic=False",
    ),
    "not deterministic inside": (
        lambda: Data.range(4).flat_map(lambda i: interleaved(deterministic=False)),
        "says deterministic=False",
    ),
    **{
        f"an option, {name}": (
            lambda name=name, value=value: with_options(numbers(), **{name: value}),
            f"its options say {name}={value}",
        )
        for name, value in exact_ops.INEXACT.items()
    },
    "a shuffle without a seed": (lambda: numbers().shuffle(1000), "has no seed"),
    "a shuffle that two parts share": (
        lambda: twice(numbers(900).shuffle(30, seed=1)),
        "uses the same shuffle or cache twice",
    ),
    "a mixture of parts that end": (
        lambda: Data.sample_from_datasets([numbers(), numbers(50).repeat().map(tripled)], seed=3),
        "mixes datasets that may end",
    ),
    "a cache that two parts share": (
        lambda: twice(numbers().cache()),
        "uses the same shuffle or cache twice",
    ),
    "a mixture without a seed": (
        lambda: Data.sample_from_datasets([numbers().repeat(), numbers().repeat()]),
        "has no seed",
    ),
    "random in Python": (lambda: numbers().map(random_in_python), "has PyFuncStateless"),
    "a policy that hides state": (lambda: ignoring(numbers().map(drawn)), "has RandomUniformInt"),
    "a snapshot": (lambda: numbers().snapshot(tempfile.mkdtemp()), "has SnapshotDatasetV2"),
    "a cache in files": (
        lambda: numbers().cache(f"{tempfile.mkdtemp()}/cache").shuffle(9, seed=1),
        "has a cache in files",
    ),
    "shuffle_and_repeat": (
        lambda: numbers().apply(tf.data.experimental.shuffle_and_repeat(99)),
        "has ShuffleAndRepeatDataset",
    ),
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


QUICK = (
    "a policy that hides state",
    "a snapshot",
    "a cache in files",
    "shuffle_and_repeat",
    "shuffle",
    "examples",
    "random",
    "a shuffle without a seed",
    "a shuffle that two parts share",
    "a cache that two parts share",
    "mixture",
    "a mixture of parts that end",
    "files",
    "windows",
    "random in Python",
    "a seed",
)


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
        batches.save_state(at - 1 - position)
        if at == stop:
            saved = checkpoint_of(source, at)
    batches.close()
    return made, saved


def checkpoint_of(source, at):
    until = time.monotonic() + 10
    states = source.iterator_states
    while states.obstacle is None and time.monotonic() < until:
        time.sleep(0.01)
    return json.loads(json.dumps(source.state(at))), source.iterator_state


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
    shards = request.getfixturevalue("shards") if kind in ("examples", "files") else None
    straight, saved = run(program(TRUSTED[kind](shards)), stop=STOP)
    assert saved[1] is not None, caplog.text
    again = program(TRUSTED[kind](shards))
    with caplog.at_level(logging.DEBUG, "pipeline"):
        rest, later = run(again, resumed(again, saved), stop=STOP + 30)
        assert rest == straight[STOP:]
        assert later[1].batches > STOP  # it is saved again, and so on
        again = program(TRUSTED[kind](shards))
        rest, _ = run(again, resumed(again, later))
    assert rest == straight[STOP + 30 :]
    assert "runs from its beginning" not in caplog.text


def test_every_dataset_whose_state_counts_as_exact_is_in_a_program_above(shards):
    seen = {"OptionsDataset"}  # of `examples`
    for make in TRUSTED.values():
        seen |= {
            node.op for node in every_node(tf_iterator._graph(program(make(shards)).run.args[0]))
        }
    listed = set(exact_ops.OUTSIDE)
    for names, ending in re.findall(r"\(([^)]+)\)(\w+)", exact_ops.EXACT.pattern):
        listed |= {name + ending for name in names.split("|")}
    assert len(listed) > 30
    assert listed - seen == set()


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
    monkeypatch.setattr(iterator_states, "MOST_BYTES", 6000)
    _, (_, pinned) = run(program(numbers().shuffle(1000, seed=1)), stop=STOP)
    assert pinned is None
    assert "its buffers hold up to" in caplog.text


def test_a_program_with_large_arrays_in_its_graph_has_no_state(monkeypatch, caplog):
    monkeypatch.setattr(iterator_states, "MOST_BYTES", 500)
    with monkeypatch.context() as patch:
        patch.setattr(tf.raw_ops, "DatasetToGraphV2", None)  # which would copy them
        _, (_, pinned) = run(program(numbers()), stop=STOP)
    assert pinned is None
    assert "its from_tensor_slices has 856 B, more than 500 B" in caplog.text


@pytest.mark.parametrize("change", rows(CHANGES))
def test_a_changed_program_is_run_again_and_refused(change, caplog):
    before, after = CHANGES[change]
    _, saved = run(program(before()), stop=STOP)
    assert saved[1]
    other = program(after())
    with pytest.raises(FingerprintError, match="the first 60 batches of a tf.data program"):
        run(other, resumed(other, saved))
    assert "its graph is not that of the run" in caplog.text


class Counting:
    """A SavableIterator whose batches count up."""

    graph = "counting"

    def __init__(self, save_seconds=0.0, error=None):
        self.at, self.saves, self.save_seconds, self.error = 0, 0, save_seconds, error

    def __next__(self):
        if self.error and self.saves < 0:
            raise self.error
        self.at += 1
        return {"x": np.array([self.at])}

    def save(self):
        self.saves += 1
        time.sleep(self.save_seconds)
        return str(self.at).encode()

    def restore(self, data):
        self.at, self.saves = int(data), -1

    def again(self):
        return Counting(error=self.error)


def counted(iterator, end, behind=0):
    states, crc = IteratorStates("counting"), 0
    for at in range(1, end + 1):
        crc = iterator_states.chained(crc, next(iterator))
        states.passed(iterator, at, crc)
        until = time.monotonic() + 10
        while states._test and states.obstacle is None and time.monotonic() < until:
            time.sleep(0.001)
        states.save(iterator, at, crc, at - behind)
        time.sleep(0.001)
    states.close()
    return states


def test_the_two_newest_states_serve_every_position_that_the_training_has_not_passed():
    states = counted(Counting(), 100, behind=10)
    assert len(states._states) == 2
    assert states.newest(90).batches <= 90 < states.newest(100).batches
    assert states.newest(0) is None


def test_saving_takes_a_twentieth_of_the_time_at_most():
    iterator = Counting(save_seconds=0.05)
    states = IteratorStates("counting", IteratorState(0, 0, 0, "", 0, b""))
    for _ in range(100):
        states.save(iterator, 1, 0, 1)
    assert iterator.saves == 1


def test_any_exception_of_the_test_is_an_obstacle_that_the_log_names(caplog):
    states = counted(Counting(error=ZeroDivisionError("in a map")), 40)
    assert states.newest(40) is None
    assert "ZeroDivisionError('in a map')" in caplog.text


def test_a_test_that_does_not_end_is_an_obstacle(monkeypatch, caplog):
    monkeypatch.setattr(iterator_states, "TEST_SECONDS", 0.0)
    monkeypatch.setattr(Counting, "again", lambda _: time.sleep(0.5))
    states, iterator = IteratorStates("counting"), Counting()
    states.save(iterator, 1, 0, 1)
    states.passed(iterator, 17, 0)
    states.save(iterator, 17, 0, 17)
    assert "its test took more than 0 s" in caplog.text
    states.close()


def test_a_first_batch_that_differs_discards_the_state(tmp_path, caplog):
    """The file changes, and the graph does not."""
    path = str(tmp_path / "numbers")

    def read():
        parsed = tf.data.TextLineDataset(path).map(lambda x: {"x": tf.strings.to_number(x)})
        return program(parsed)

    (tmp_path / "numbers").write_text("".join(f"{n}\n" for n in range(107)))
    _, saved = run(read(), stop=STOP)
    assert saved[1]
    (tmp_path / "numbers").write_text("".join(f"{n}\n" for n in range(1, 108)))
    again = read()
    with pytest.raises(FingerprintError):
        run(again, resumed(again, saved))
    assert "its first batch is not that of the run" in caplog.text


@pytest.mark.slow
def test_what_neither_the_graph_nor_the_first_batch_shows_is_not_noticed(tmp_path):
    """As docs/frameworks.md says."""
    path = str(tmp_path / "numbers")

    def read():
        def parsed(record):
            return {"x": tf.strings.to_number(record, tf.int64)}

        return program(tf.data.TFRecordDataset(path).map(parsed))

    def write(last):
        with tf.io.TFRecordWriter(path) as writer:
            for number in [*range(100, 999), last]:
                writer.write(str(number))

    write(106)
    straight, saved = run(read(), end=140, stop=STOP)
    assert saved[1]
    write(200)
    again = read()
    rest, _ = run(again, resumed(again, saved), end=140)
    assert rest != straight[STOP:]
