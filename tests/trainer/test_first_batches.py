"""overfit_batches and fast_dev_run: the first batches, read once, and everything else as ever."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import FingerprintError, InputError
from trainer.inputs import FirstBatches, IterableInput
from trainer.trainer import Trainer


def rows(*values):
    return [{"x": np.full((2, 1), value, np.float32)} for value in values]


def taken(source, position, count):
    return [int(batch["x"][0, 0]) for batch in itertools.islice(source.batches(position), count)]


def test_first_batches_repeats_from_any_position():
    source = FirstBatches(IterableInput(rows(0, 1, 2, 3), 1), 3, repeat=True)
    assert taken(source, source.info.start, 8) == [0, 1, 2, 0, 1, 2, 0, 1]
    position = source.restore(source.state(source.advance(source.info.start, 5)))
    assert taken(source, position, 4) == [2, 0, 1, 2]
    assert taken(FirstBatches(IterableInput(rows(0, 1, 2, 3), 1), 3, repeat=True), position, 2) == [2, 0]


def test_first_batches_reads_its_source_once_and_closes_it():
    read, ended = [], []

    def batches():
        try:
            for number in itertools.count():
                read.append(number)
                yield from rows(number)
        finally:
            ended.append(len(read))

    assert taken(FirstBatches(IterableInput(batches(), 1), 2, repeat=True), 0, 7) == [0, 1, 0, 1, 0, 1, 0]
    assert (read, ended) == ([0, 1], [2])


def test_an_input_of_fewer_batches_is_refused_with_both_numbers():
    with pytest.raises(InputError, match="has only 2 batches"):
        taken(FirstBatches(IterableInput(rows(0, 1), 1), 3, repeat=True), 0, 3)


def test_the_checkpoint_of_another_number_of_batches_is_refused():
    two, three = (FirstBatches(IterableInput(rows(0, 1, 2), 1), count, repeat=True) for count in (2, 3))
    for state in (two.state(1), {"fingerprint": "iterable"}):
        with pytest.raises(FingerprintError, match="the first 3 batches"):
            three.restore(state)


def test_overfit_batches_limits_training_but_not_evaluation(dense_task, vectors, make_input, vector_input, config):
    read = []

    def input_fn(ctx):
        read.append(make_input(vectors, ctx))
        return read[-1]

    trainer = Trainer(dense_task, config(overfit_batches=2, iterations_per_loop=5))
    trainer.train(input_fn, steps=5)
    assert len(read[0].given) == 2
    evaluated = trainer.evaluate(vector_input)
    assert (evaluated.records, evaluated.proven) == (100, True)


def test_a_fast_dev_run_trains_and_evaluates_a_little_and_neither_reads_nor_writes_a_file(
    dense_task, vector_input, config, caplog
):
    caplog.set_level("INFO", "trainer")
    settings = config(fast_dev_run=3, max_steps=1000)
    Path(settings.workdir, "checkpoints", "500").mkdir(parents=True)
    before = sorted(Path(settings.workdir).rglob("*"))
    trainer = Trainer(dense_task, settings)
    assert "trains 3 steps; evaluates and predicts one batch" in caplog.text
    result = trainer.train(vector_input)
    evaluated = trainer.evaluate(vector_input)
    assert (result.start_step, result.step, evaluated.records, evaluated.proven) == (0, 3, 16, False)
    assert sorted(Path(settings.workdir).rglob("*")) == before
    assert "steps 0 to 3: 176 parameters, batch 16 on 4 cpu devices, " in caplog.text
    assert repr(result).startswith("TrainResult(start_step=0, step=3, metrics=")  # without a screenful of arrays
