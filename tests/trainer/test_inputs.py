"""What an input_fn may return, what is refused before the first step, and the first batches read once."""

import copy
import itertools
import logging
import re
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import optax
import pytest
from flax import nnx
from host_batches import assert_same

from pipeline.datasets import eval_dataset, train_dataset
from pipeline.errors import FingerprintError, InputError, OptionError
from pipeline.hosts import Hosts
from pipeline.machine import num_cores
from trainer.callbacks import Callback
from trainer.config import TrainerConfig
from trainer.inputs import InputContext, IterableInput, as_function, as_input, first_batches
from trainer.mesh.batch_spec import batch_struct, check_batch
from trainer.metrics.classes import Accuracy
from trainer.nnx_task import nnx_task
from trainer.trainer import Trainer

CONTEXTS = [InputContext("train", 8, 4, 4, Hosts(host, 2), 5, 0, 60.0) for host in range(2)]


@pytest.mark.parametrize(
    ("dataset", "given"),
    [
        (train_dataset, {}),
        (train_dataset, {"seed": 3, "stall_seconds": 7.0}),
        (eval_dataset, {"limit": 50}),
    ],
)
def test_a_dataset_without_a_batch_size_has_that_of_the_context_and_what_it_was_given(
    digits, dataset, given
):
    for given_as_input in (dataset(digits[1], **given), lambda: dataset(digits[1], **given)):
        for context in CONTEXTS:
            made = as_function(given_as_input)(context)
            seed = {"seed": context.seed} if dataset is train_dataset else {}
            expected = dataset(digits[1], global_batch=8, hosts=context.hosts, **seed | given)
            assert_same(list(itertools.islice(made, 3)), list(itertools.islice(expected, 3)))
            assert made._stall_seconds == given.get("stall_seconds", 60.0)


def test_what_a_command_may_leave_out_is_masked_whatever_the_dataset_was_given(digits):
    context = replace(CONTEXTS[0], max_masked=3)
    assert as_function(eval_dataset(digits[1], on_error="raise"))(context).info.on_error == "mask"
    assert as_function(eval_dataset(digits[1]))(CONTEXTS[0]).info.on_error == "raise"


@pytest.mark.parametrize("dataset", [train_dataset, eval_dataset])
def test_a_dataset_without_a_batch_size_cannot_be_iterated(dataset):
    assert copy.copy(dataset("anywhere"))._args == ("anywhere",)
    text = f"this {dataset.__name__} has no batch size. Give it one, such as global_batch=64, or"
    with pytest.raises(OptionError, match=text):
        next(iter(dataset("anywhere")))


def test_a_complete_input_is_used_without_a_wrapper():
    source = IterableInput([{"x": np.ones(1)}], 1)
    assert as_input(source, CONTEXTS[0]) is source


def test_a_plain_batch_gets_a_mask_of_ones_and_32_bits():
    source = IterableInput([{"x": np.arange(3.0), "nested": {"y": np.arange(3)}}], 3)
    (batch,) = source.batches(source.info.start)
    assert batch["_mask"].tolist() == [1, 1, 1]
    assert (batch["x"].dtype, batch["nested"]["y"].dtype) == (np.float32, np.int32)
    check_batch(batch, batch_struct(batch))


def test_a_plain_iterable_may_reuse_its_arrays_and_is_closed():
    closed = []

    def reusing():
        buffer = np.zeros(2, np.float32)
        try:
            while True:
                buffer += 1
                yield {"x": buffer}
        finally:
            closed.append(True)

    batches = IterableInput(reusing(), 2).batches(None)
    first, second = next(batches), next(batches)
    assert (first["x"][0], second["x"][0]) == (1, 2)
    batches.close()
    assert closed == [True]


def test_an_integer_over_32_bits_is_refused_not_cut():
    with pytest.raises(
        InputError, match=r"int64 numbers in 5\.\.4294967296, which do not fit int32"
    ):
        IterableInput([{"id": np.array([5, 2**32])}], 2)


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (None, "NoneType"),
        ({"x": np.zeros(3)}, "input_fn returned a dict"),
        ([(np.zeros(16), np.zeros(16))], "a batch is a tuple"),
        ([{"x": np.float32(3)}], "expected 16 rows"),
        ([{"x": np.array(["a"] * 16)}], "<U1"),
        ([{"x": np.zeros((15, 8))}], "expected 16 rows"),
    ],
    ids=str,
)
def test_a_value_that_is_not_an_input_is_refused_before_compiling(
    dense_task, config, returned, text
):
    with pytest.raises(InputError, match=text):
        Trainer(dense_task, config()).train(lambda ctx: returned, steps=1)


@pytest.mark.parametrize(
    ("keys", "changes", "text"),
    [
        (("x", "label"), {}, "the input's spec has no _mask"),
        (
            ("x", "_mask", "_index", "_crc", "_seed"),
            {"label": np.zeros(16, np.int64)},
            "label is int64, which JAX would cut.* Deliver int32",
        ),
    ],
)
def test_an_input_with_a_spec_that_jax_cannot_hold_is_refused(
    vector_input, dense_task, config, keys, changes, text
):
    def input_fn(ctx):
        source = vector_input(ctx)
        spec = {key: source.info.spec[key] for key in keys} | changes
        source.info = replace(source.info, spec=spec)
        return source

    with pytest.raises(InputError, match=text):
        Trainer(dense_task, config()).train(input_fn, steps=1)


def test_a_loss_or_metric_that_is_not_one_value_a_record_is_refused(
    vector_input, dense_task, config
):
    def mean(variables, batch, rng, train):
        losses, after, outputs = dense_task.loss_fn(variables, batch, rng, train)
        return losses.mean(), after, outputs

    error = {"error": lambda outputs, batch: outputs.mean()}
    for changes, text in (
        ({"loss_fn": mean}, r"loss has the shape \[\]; expected \[16\], one value per record"),
        ({"metrics": error}, r"the metric 'error' has the shape \[\]"),
    ):
        with pytest.raises(InputError, match=text):
            Trainer(replace(dense_task, **changes), config()).train(vector_input, steps=1)


def test_arguments_in_the_wrong_place_or_form_are_named_with_the_right_one(
    dense_task, vector_input, config
):
    def three(variables, batch, rng):
        raise AssertionError

    def make_model(rngs):
        return nnx.Linear(2, 2, rngs=rngs)

    def nnx_loss(model, batch):
        raise AssertionError

    def trainer(task=dense_task, **options):
        return Trainer(task, config(), **options)

    listed, nnx_sgd = [Accuracy("y")], partial(nnx_task, make_model, optimizer=optax.sgd(0.1))
    with_hosts = lambda ctx, hosts: vector_input(ctx)  # noqa: E731
    calls = {
        r"the config is a Task\. Give Trainer\(task, TrainerConfig": lambda: Trainer(
            config(), dense_task
        ),
        r"callbacks is a Callback\. Give a list": lambda: trainer(callbacks=Callback()),
        r"callbacks has the class Callback\. Give an object: Callback\(": lambda: trainer(
            callbacks=[Callback]
        ),
        r"warm_start is a str\. Give WarmStart\(init_from=": lambda: trainer(warm_start="runs/a"),
        r"loss is called with \(model, batch\): too many positional": lambda: nnx_sgd(
            loss=lambda model: 0
        ),
        r"metrics is a list of 1\. Give a dict of names": lambda: nnx_sgd(
            loss=nnx_loss, metrics=listed
        ),
        r"metrics is a list of 1\. Give a dict of": lambda: replace(dense_task, metrics=listed),
        r"'batch_size' is not a .* Did you mean 'global_batch_size'\?": lambda: TrainerConfig(
            workdir="w", batch_size=3
        ),
        r"loss_fn is called with \(variables, batch, rng, train\): too many positional": lambda: (
            trainer(replace(dense_task, loss_fn=three))
        ),
        r"called with the InputContext, and nothing else: missing .* argument: 'hosts'": lambda: (
            trainer().train(with_hosts, steps=1)
        ),
        r"the task is None": lambda: trainer(None),
        r"optimizer is a function": lambda: trainer(
            replace(dense_task, optimizer=optax.cosine_decay_schedule(0.1, 10))
        ),
        r"target is a str\. Give Target\('label'": lambda: replace(dense_task, target="label"),
        r"optimizer is a float": lambda: trainer(replace(dense_task, optimizer=0.1)),
    }
    for given, kind in (([{}], "list"), (iter([{}]), "list_iterator"), (iter_none(), "generator")):
        text = rf"the input is a {kind}\. Give a function that makes it.*, or a train_dataset"
        calls[text] = partial(trainer().train, given, steps=1)
    for text, call in calls.items():
        with pytest.raises(OptionError, match=text):
            call()


def iter_none():
    yield from ()


def test_an_input_that_is_waited_for_and_more_workers_than_cores_are_told_with_what_helps(
    dense_task, vectors, config, caplog, monkeypatch
):
    monkeypatch.setattr("trainer.loop.train_monitor.NOTABLE_SECONDS", 0.1)

    def slow(ctx):
        batch = {name: values[:16] for name, values in vectors.items()}
        for _ in range(60):
            time.sleep(0.02)
            yield batch

    Trainer(dense_task, config(log_every=2, iterations_per_loop=2)).train(slow)
    waited = r"waited for its input for \d\d+ % of the time\. More input workers, a cache, or images converted with --max-side may help: see"
    assert re.search(waited, caplog.text)
    Trainer(dense_task, config(input_workers=999))
    assert f"999 input workers, but this process may use {num_cores()} cores" in caplog.text


def test_a_long_run_that_waits_is_told_before_its_end(
    dense_task, vector_input, config, caplog, monkeypatch
):
    for name in ("NOTABLE_SECONDS", "NOTABLE", "SETTLED_SECONDS"):
        monkeypatch.setattr(f"trainer.loop.train_monitor.{name}", 0.0)
    settings = config(log_every=4, iterations_per_loop=2)
    caplog.set_level(logging.INFO)
    Trainer(dense_task, settings).train(vector_input, max_steps=20)
    lines = [record.getMessage() for record in caplog.records]
    (told,) = [i for i, line in enumerate(lines) if "has waited for its input" in line]
    assert any(line.startswith("step 20/20") for line in lines[told:])


def rows(*values):
    return [{"x": np.full((2, 1), value, np.float32)} for value in values]


def taken(source, position, count):
    return [int(batch["x"][0, 0]) for batch in itertools.islice(source.batches(position), count)]


def test_first_batches_are_read_once_and_repeated_from_any_step():
    read, ended = [], []

    def batches():
        try:
            for number in itertools.count():
                read.append(number)
                yield from rows(number)
        finally:
            ended.append(len(read))

    assert taken(first_batches(IterableInput(batches(), 1), 2, 0), None, 7) == [0, 1, 0, 1, 0, 1, 0]
    assert (read, ended) == ([0, 1], [2])
    assert taken(first_batches(IterableInput(rows(0, 1, 2, 3), 1), 3, 5), None, 4) == [2, 0, 1, 2]
    assert taken(first_batches(IterableInput(rows(0, 1, 2, 3), 1), 3), None, 9) == [0, 1, 2]


def test_an_input_of_fewer_batches_is_refused_with_both_numbers():
    with pytest.raises(InputError, match="has only 2 batches; its first 3 are needed"):
        first_batches(IterableInput(rows(0, 1), 1), 3, 0)


def test_the_checkpoint_of_other_first_batches_is_refused():
    two, three = (first_batches(IterableInput(rows(0, 1, 2), 1), count, 0) for count in (2, 3))
    assert two.restore(two.state(None)) is None
    for state in (two.state(None), {"fingerprint": "of a dataset"}):
        with pytest.raises(FingerprintError, match="this is the first 3 batches of iterable"):
            three.restore(state)


def test_overfit_batches_limits_training_but_not_evaluation(
    dense_task, vectors, make_input, vector_input, config
):
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
    assert (result.start_step, result.step) == (0, 3)
    assert (evaluated.records, evaluated.proven) == (16, False)
    assert sorted(Path(settings.workdir).rglob("*")) == before
    assert "steps 0 to 3: 176 parameters, batch 16 on 4 cpu devices, " in caplog.text
    assert repr(result).startswith("steps 0 to 3: accuracy ")  # without a screenful of arrays
