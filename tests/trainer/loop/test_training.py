"""Training as a whole: same results for any dispatch length, exact resumption, no broken checkpoint."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sweep import SWEEP

from pipeline.datasets import eval_dataset, train_dataset
from pipeline.errors import BatchSizeError, CheckpointError, InputError, OptionError
from trainer.callbacks import Callback
from trainer.commands.recorded import load
from trainer.reports.segments import read_history
from trainer.trainer import Trainer

training_bits = str(Path(__file__).with_name("training_bits.py"))
# steps a dispatch; tests/e2e/test_preemption_on_hosts.py has four
DEVICES = {1: 50, 4: 7} if SWEEP else {1: 50}


def arrays_of(result):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(result.state)]


def assert_same_bits(a, b):
    for left, right in zip(arrays_of(a), arrays_of(b), strict=True):
        assert left.tobytes() == right.tobytes()


@pytest.fixture(scope="module")
def dispatched(fork_server, tmp_path_factory):
    """(what training_bits.py reports, all that it printed)."""
    directory = tmp_path_factory.mktemp("bits")
    # No env of ours: it has the XLA_FLAGS of the tests' process.
    code, printed = fork_server.run(
        [training_bits, str(directory), *map(str, DEVICES)],
        directory / "printed",
        env=None,
        timeout=200,
    )
    assert code == 0, printed
    return json.loads(printed.splitlines()[-1]), printed


@pytest.mark.parametrize(("devices", "k"), DEVICES.items())
def test_a_dense_model_has_the_same_bits_for_any_steps_per_dispatch(dispatched, devices, k):
    report, _ = dispatched
    one, several = report[f"dense {devices}x1"], report[f"dense {devices}x{k}"]
    assert several["state"] == one["state"]
    assert (one["executables"], several["executables"]) == (1, 2)


def test_a_loop_given_by_time_trains_the_same_bits_as_one_given_by_steps(dispatched):
    report, printed = dispatched
    assert "50 steps per dispatch, for 1h" in printed
    assert report["dense 1x1h"] == report["dense 1x50"]


def test_a_convolution_net_in_a_scan_agrees_with_single_steps_within_1e_3(dispatched):
    report, printed = dispatched
    assert report["scan"]["distance"] <= 1e-3
    assert report["auto"] == report["step"]  # auto takes single steps for convolutions on CPU
    begun = [line for line in printed.splitlines() if "training steps 0 to 14:" in line]
    assert [line.endswith(" in one program") for line in begun] == [True, False, False]
    assert (report["scan"]["executables"], report["auto"]["executables"]) == (1, 1)


def test_a_run_stopped_at_a_checkpoint_and_resumed_is_the_straight_run(
    dense_task, vectors, make_input, config
):
    inputs = []

    def input_fn(ctx):
        inputs.append(make_input(vectors, ctx))
        return inputs[-1]

    settings = config("straight", iterations_per_loop=7, checkpoint_every_steps=10)
    straight = Trainer(dense_task, settings).train(input_fn, max_steps=30)
    stopped = replace(settings, workdir=config("stopped").workdir)
    Trainer(dense_task, stopped).train(input_fn, max_steps=20)
    resumed = Trainer(dense_task, stopped).train(input_fn, steps=10)

    assert (resumed.start_step, resumed.step) == (20, 30)
    assert_same_bits(straight, resumed)
    whole, first, second = (np.array(each.given) for each in inputs)
    np.testing.assert_array_equal(whole, np.concatenate([first, second]))


def test_another_model_does_not_take_the_checkpoint(
    dense_task, vectors, make_input, vector_input, config
):
    Trainer(dense_task, config()).train(vector_input, steps=2)
    other = replace(dense_task, optimizer=optax.sgd(0.1))
    with pytest.raises(CheckpointError, match="optimizer/0/count is .* missing in this task"):
        Trainer(other, config()).train(vector_input, steps=2)
    narrow = {"x": vectors["x"][:, :5], "label": vectors["label"]}
    with pytest.raises(
        CheckpointError, match=r"params/a is float32 \[8, 16\] there and float32 \[5, 16\]"
    ):
        Trainer(dense_task, config()).train(lambda ctx: make_input(narrow, ctx), steps=2)


@pytest.mark.parametrize(
    "arguments",
    [
        {"steps": 5, "max_steps": 5},
        {"max_steps": 5, "max_epochs": 5},
        {"steps": 0},
        {"max_steps": -1},
        {"steps": 2.0},
        {"max_steps": True},
        {"max_epochs": 0},
    ],
)
def test_contradictory_or_missing_numbers_of_steps_are_refused(
    dense_task, vector_input, config, arguments
):
    with pytest.raises(OptionError, match=f"{next(iter(arguments))}="):
        Trainer(dense_task, config()).train(vector_input, **arguments)


def test_a_run_that_already_reached_max_steps_says_so_and_trains_nothing(
    dense_task, vector_input, config, caplog
):
    trainer = Trainer(dense_task, config(max_steps=4))
    trainer.train(vector_input)
    with caplog.at_level(logging.INFO, "trainer"):
        again = trainer.train(lambda ctx: pytest.fail("the input was opened"))
    assert (again.start_step, again.step, again.state) == (4, 4, None)
    assert "the checkpoint of step 4 has reached the last step, 4" in caplog.text


def test_epochs_end_at_the_step_that_has_seen_so_many_records(dense_task, vectors, config, caplog):
    trainer = Trainer(dense_task, config(global_batch_size=16, max_steps=1000))
    with caplog.at_level(logging.INFO, "trainer"):
        trained = trainer.train(train_dataset(vectors), max_epochs=3)
    step = round(3 * len(vectors["x"]) / 16)
    assert trained.step == step
    assert (
        f"max_epochs=3 of {len(vectors['x'])} records: training ends at step {step}" in caplog.text
    )
    again = Trainer(dense_task, config(global_batch_size=16, max_epochs=3)).train(
        train_dataset(vectors)
    )
    assert (again.start_step, again.step) == (step, step)


def test_epochs_need_an_input_that_knows_its_records(dense_task, vectors, config):
    batches = iter([{name: values[:16] for name, values in vectors.items()}])
    with pytest.raises(
        OptionError, match="max_epochs=2, but the input does not state how many records"
    ):
        Trainer(dense_task, config(global_batch_size=16)).train(lambda ctx: batches, max_epochs=2)


def test_a_run_in_python_leaves_its_results_as_files_and_prints_them_in_a_few_lines(
    dense_task, vectors, config
):
    settings = config()
    trainer = Trainer(dense_task, settings)
    trained = trainer.train_and_evaluate(train_dataset(vectors), eval_dataset(vectors), max_steps=4)
    result = trainer.evaluate(eval_dataset(vectors))
    page = json.loads((Path(settings.workdir) / "train_result.json").read_text())
    assert (page["step"], page["steps_per_second"]) == (4, trained.speed.steps_per_second)
    page = json.loads((Path(settings.workdir) / "eval_result.json").read_text())
    assert (page["step"], page["loss"], page["proven"]) == (4, result.metrics["loss"], True)
    steps, speed, evaluated = str(trained).splitlines()
    assert steps.startswith("steps 0 to 4: accuracy ")
    assert speed == str(trained.speed)
    count = len(vectors["x"])
    assert evaluated == str(result)
    assert str(result).endswith(f" over {count} of {count} records of {result.data}, proven exact")


def test_the_model_of_a_run_in_python_is_loaded_with_its_task(dense_task, vectors, config):
    task = replace(
        dense_task,
        predict_fn=lambda variables, batch: {"logits": batch["x"] @ variables.params["a"]},
    )
    trainer = Trainer(task, config(ema_decay=0.9, keep_best="loss"))
    trainer.train_and_evaluate(train_dataset(vectors), eval_dataset(vectors), max_steps=4)
    predicted = [row["logits"] for row in trainer.predict(eval_dataset(vectors))]
    model = load(trainer.config.workdir, "best", task=task)
    assert model.inputs["x"].shape[1:] == vectors["x"].shape[1:]
    for x in (vectors["x"], vectors["x"].astype(np.float64)):
        np.testing.assert_allclose(model.predict({"x": x})["logits"], predicted, rtol=1e-6)
    with pytest.raises(InputError, match=r"a batch is a ndarray\. It must be a dict such as"):
        model.predict(vectors["x"])
    with pytest.raises(CheckpointError, match="load takes that program's task as task="):
        load(trainer.config.workdir)


def test_a_rate_that_the_optimizer_keeps_in_its_state_is_reported(dense_task, vector_input, config):
    schedule = optax.linear_schedule(0.5, 0.0, 4)
    task = replace(
        dense_task, optimizer=optax.inject_hyperparams(optax.adam)(learning_rate=schedule)
    )
    assert (
        Trainer(task, config()).train(vector_input, max_steps=2).metrics["learning_rate"] == 0.375
    )


def test_a_batch_that_the_devices_do_not_divide_is_refused_at_once(dense_task, config):
    with pytest.raises(
        BatchSizeError, match=r"global_batch=18 is not divisible by 4 devices.* 16, 20"
    ):
        Trainer(dense_task, config(global_batch_size=18))
    with pytest.raises(BatchSizeError, match="global_batch=2 "):
        Trainer(dense_task, config(eval_batch_size=2))


def test_the_input_function_receives_mode_batch_size_rows_and_start_step(
    dense_task, vectors, make_input, config
):
    contexts = []

    def input_fn(ctx):
        contexts.append(ctx)
        return make_input(vectors, ctx)

    trainer = Trainer(dense_task, config(seed=9, eval_batch_size=32))
    trainer.train(input_fn, steps=3)
    trainer.train(input_fn, steps=3)
    trainer.evaluate(input_fn)
    first, second, evaluation = contexts
    assert (first.mode, first.global_batch_size, first.per_host_batch_size) == ("train", 16, 16)
    assert (first.per_device_batch_size, first.seed, first.start_step) == (4, 9, 0)
    assert (first.hosts.devices, first.hosts.rows) == (4, (range(16),))
    assert second.start_step == 3
    assert (evaluation.mode, evaluation.per_host_batch_size, evaluation.start_step) == (
        "eval",
        32,
        0,
    )


def test_a_plain_iterable_trains_and_says_that_it_is_not_resumed(
    dense_task, vectors, config, caplog
):
    # 64 bits, one buffer for all batches
    reused = {"x": np.empty((16, 8)), "label": np.empty(16, np.int64)}

    def plain(ctx):
        rng = np.random.default_rng(ctx.start_step)
        while True:
            ids = rng.integers(0, 100, ctx.per_host_batch_size)
            reused["x"][:], reused["label"][:] = vectors["x"][ids], vectors["label"][ids]
            yield reused

    def fresh(ctx):
        for batch in plain(ctx):
            yield {"x": batch["x"].astype(np.float32), "label": batch["label"].astype(np.int32)}

    with caplog.at_level(logging.INFO, "trainer"):
        result = Trainer(dense_task, config("plain", iterations_per_loop=7)).train(plain, steps=10)
    assert "a plain iterable, which has no position" in caplog.text
    assert_same_bits(result, Trainer(dense_task, config("fresh")).train(fresh, steps=10))


def test_training_makes_no_implicit_transfers_to_or_from_devices(dense_task, vector_input, config):
    class Guard(Callback):
        def on_loop_end(self, end):  # from here on: the start has transfers of its own
            # in all threads: the feeder places the batches
            jax.config.update("jax_transfer_guard", "disallow")

    trainer = Trainer(
        dense_task, config(iterations_per_loop=7, checkpoint_every_steps=20), callbacks=[Guard()]
    )
    try:
        assert trainer.train(vector_input, max_steps=29).step == 29
        with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
            jnp.zeros(3) + np.ones(3)
    finally:
        jax.config.update("jax_transfer_guard", "allow")


def test_rows_with_mask_0_do_not_train(dense_task, vectors, config):
    def batch_with(padding):
        x = vectors["x"][:16].copy()
        x[12:] = padding
        label = np.where(np.arange(16) < 12, vectors["label"][:16], 2**31 - 1).astype(np.int32)
        return {"x": x, "label": label, "_mask": (np.arange(16) < 12).astype(np.float32)}

    def trained(padding):
        batch = batch_with(padding)
        return Trainer(dense_task, config(f"p{padding}")).train(lambda ctx: [batch] * 2, steps=2)

    zero, nan, huge = map(trained, (0.0, np.nan, 1e38))
    assert_same_bits(zero, nan)
    assert_same_bits(zero, huge)


def test_a_super_batch_is_cut_to_the_memory_it_may_take(dense_task, vector_input, config, caplog):
    # A batch of 16 has 16 * (8 + 4 + 2) numbers of 4 bytes; over 4 devices, 224 bytes.
    settings = config(iterations_per_loop=50, superbatch_bytes=1400)
    with caplog.at_level(logging.INFO, "trainer"):
        Trainer(dense_task, settings).train(vector_input, steps=10)
    assert (
        "6 steps per dispatch instead of 50: one takes 224 B of a device, and superbatch_bytes of "
        "the TrainerConfig is 1.4 KB"
    ) in caplog.text


def test_a_history_whose_batch_cannot_be_is_refused_before_memory_is_taken(
    dense_task, vector_input, config, monkeypatch
):
    settings = config()
    Trainer(dense_task, settings).train(vector_input, max_steps=1)
    start = read_history(settings.workdir).starts[-1]
    for batch in (
        {"x": ["float32", 1, 2**40]},
        {f"x{i}": ["float32", 1, 2**23] for i in range(3)},
        {"x": ["float32", 1, -(2**40)], "y": ["float32", 1, 2**40]},
        {"x": ["no dtype", 1]},
        {"x": []},
    ):
        history = SimpleNamespace(starts=[replace(start, batch=batch)])
        monkeypatch.setattr("trainer.loop.loaded_model.read_history", lambda _, it=history: it)
        with pytest.raises(CheckpointError, match="does not have the batches of the run"):
            load(settings.workdir, task=dense_task)
