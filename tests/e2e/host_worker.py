"""One process of a run of several, started by the fixture `run_hosts`: python host_worker.py '<JSON of Order>'.

It joins the others, runs one of the functions below, and leaves what it saw as JSON for the test to judge."""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from host_preemption import goes_on, preempted
from host_programs import programs
from host_situations import interrupted_consumer, situation, unhurried
from host_task import (
    NumberedInput,
    Recorded,
    checksums,
    class_scores,
    dense_task,
    error_of,
    plain_batches,
    settings,
    whole,
)

from pipeline import logs
from trainer.callbacks import Callback, Exporter
from trainer.checkpointing.listing import finished_steps
from trainer.checkpointing.warm_start import WarmStart
from trainer.config import TrainerConfig
from trainer.hosts.joining import Distributed, join
from trainer.mesh.batch_spec import BatchAxes, batch_struct
from trainer.mesh.placement import Placement
from trainer.recipes import tabular
from trainer.trainer import Trainer

AGREED = "now all agree"
ELSEWHERE = (preempted, goes_on, programs)
ELSEWHERE += (situation, unhurried, interrupted_consumer)


class Complete(Callback):
    def __init__(self):
        self.steps = []

    def on_checkpoint_complete(self, end):
        assert end.reports.writes
        assert end.step in finished_steps(str(Path(end.path).parents[1]))
        self.steps.append(end.step)


ROWS = 16


def placed(devices, model):
    """The host's ranges of rows; the shape of the global batch, and what each device holds, also of an array with
    rows last; the shape of a batch of half the host's rows, or that it is refused.

    A batch is the numbers of its rows. Nothing is compiled."""
    axes = BatchAxes({"last": 1})
    placement = Placement.of([jax.devices()[i] for i in devices], {"model": model}, axes)
    rows = placement.hosts(ROWS).rows
    numbers = np.array([row for part in rows for row in part], np.int32)
    batch = {"row": numbers, "last": np.stack([numbers, -numbers])}
    struct = placement.global_struct(batch_struct(batch), ROWS)
    placed = placement.place(batch, struct)

    def parts(array):
        shards = array.addressable_shards
        return {jax.devices().index(shard.device): shard.data.tolist() for shard in shards}

    try:
        few = {"row": numbers[: len(numbers) // 2]}
        half = placement.place(few, {"row": struct["row"]})["row"].shape
    except ValueError:
        half = "refused"
    own = {"rows": [[part.start, part.stop] for part in rows], "half": half}
    own |= {"shape": placed["row"].shape}
    return own | {"parts": parts(placed["row"]), "last": parts(placed["last"])}


def same_truth(order):
    """Places rows over every mesh of `order`, then trains and evaluates in every layout:
    {name: {workdir, devices, model, save_every, restore_step, check_padding, init_from, max_steps, exports}}."""
    yield "placed", [placed(*mesh) for mesh in order.meshes]
    for name, layout in order.layouts.items():
        devices = [jax.devices()[i] for i in layout.get("devices", range(jax.device_count()))]
        config = TrainerConfig(
            workdir=layout["workdir"],
            global_batch_size=32,
            eval_batch_size=48,
            iterations_per_loop=4,
            checkpoint_every_steps=layout.get("save_every"),
            restore_step=layout.get("restore_step"),
            mesh=f"model={layout.get('model', 1)}",
            accumulate=2,
            ema_decay=0.9,
            host_timeout_seconds=60,
            seed=7,
        )
        start = WarmStart(init_from=layout.get("init_from"))
        complete = Complete()
        trainer = Trainer(dense_task(rich=True), config, devices, [complete], start)
        train, evaluation = Recorded(order.data_dir), Recorded(order.data_dir)
        trained = trainer.train(train, max_steps=layout.get("max_steps", order.max_steps))
        check_padding = layout.get("check_padding", False)
        result = trainer.evaluate(evaluation, check_padding=check_padding)
        epochs = 3 if check_padding else 1  # with each kind of padding
        once = evaluation.batches[: len(evaluation.batches) // epochs]
        assert evaluation.batches == epochs * once
        report = {"start_step": trained.start_step, "last step": trained.metrics}
        report |= {"trained": train.batches, "evaluated": once, "metrics": result.metrics}
        report |= {"records": result.records, "proven": result.proven, "complete": complete.steps}
        report |= {"checksums": checksums(trained.state), "params": whole(trained.state)}
        if "exports" in layout:
            inputs = Recorded(order.data_dir)
            latest = Exporter(layout["exports"], inputs)
            # not better than the latest
            worse = Exporter(layout["exports"], inputs, when="best")
            task = replace(dense_task(), predict_fn=class_scores)
            Trainer(task, config, devices, callbacks=[latest, worse]).evaluate(inputs)
            report["exported"] = sorted(export.name for export in Path(layout["exports"]).iterdir())
        yield name, report | {"confusion": result.arrays["confusion"].tolist()}


def wrong_index(order):
    """Host `order.host` reads another copy of the data than the others; training must not begin anywhere."""
    data_dir = order.wrong_dir if jax.process_index() == order.host else order.data_dir
    config = settings(order, global_batch_size=32)
    Trainer(dense_task(), config).train(Recorded(data_dir), max_steps=1000)
    yield "trained", True


def bad_records(order):
    """Trains past damaged records, then evaluates without them."""
    common = {"data_dir": order.data_dir, "quarantine_file": order.quarantine_file}
    train, evaluation = Recorded(**common, on_error="skip"), Recorded(**common, on_error="mask")
    trainer = Trainer(dense_task(), settings(order, global_batch_size=32, eval_batch_size=48))
    yield "last step", trainer.train(train, max_steps=44).metrics  # nearly an epoch
    result = trainer.evaluate(evaluation)
    yield "trained", train.batches
    yield "evaluated", evaluation.batches
    yield "counted", [result.records, result.masked, result.proven]
    yield "metrics", result.metrics
    yield "met", [bad.record_id for bad in evaluation.source.quarantine]


def large_integers(order):
    """Trains on a table, evaluates and predicts."""
    config = settings(
        order, global_batch_size=64, eval_batch_size=48, max_steps=300, iterations_per_loop=100
    )
    recipe = tabular.Config(data_dir=order.data_dir, target="y", trainer=config)
    trainer = Trainer(recipe.task(), config)
    trainer.train(recipe.train_input)
    yield "metrics", trainer.evaluate(recipe.eval_input).metrics
    found = trainer.predict(recipe.eval_input, gather=True)
    yield "predicted", [[int(each["label"]), float(each["prediction"])] for each in found]


def disagreements(order):
    """One call for each way in which host `order.host` may differ; then one where all agree."""
    mine = jax.process_index() == order.host

    def different(ctx):
        for batch in plain_batches(ctx):
            yield batch | {"image": batch["image"][:, :4]}

    def attempt(input_fn=plain_batches, width=32, steps=5, **changes):
        trainer = Trainer(dense_task(width=width), settings(order, **changes))
        return error_of(lambda: trainer.train(input_fn, max_steps=steps))

    yield "seed", attempt(seed=4 if mine else 3)
    yield "iterations_per_loop", attempt(iterations_per_loop=4 if mine else 5)
    yield "spec", attempt(different if mine else plain_batches)
    yield "model", attempt(width=16 if mine else 32)
    small, large = Recorded(order.data_dir), Recorded(order.wrong_dir)
    yield "data", attempt(large if mine else small, global_batch_size=32)
    yield "steps", attempt(small, steps=6 if mine else 5, global_batch_size=32)
    print(AGREED)
    yield from uneven_inputs(order)
    yield from mixed_rows(order)


def mixed_rows(order):
    """Trains, then evaluates a task whose metrics padding changes; only the last host has any.

    Checked by one host alone, then by all."""
    task = dense_task()

    def centred(variables, batch, rng, train):
        image = batch["image"].astype(jnp.float32)
        return task.loss_fn(variables, {**batch, "image": image - image.mean(0)}, rng, train)

    def input_fn(ctx):
        if ctx.mode == "train":
            return plain_batches(ctx)
        rows = [row for part in ctx.hosts.rows for row in part]
        return [next(plain_batches(ctx)) | {"_mask": (np.array(rows) < 10).astype(np.float32)}]

    trainer = Trainer(replace(task, loss_fn=centred), settings(order))
    yield "at last", trainer.train(input_fn, max_steps=5).step

    def checked(check_padding):
        return error_of(lambda: trainer.evaluate(input_fn, check_padding=check_padding))

    yield "one", checked(jax.process_index() == order.host)
    yield "all", checked(True)


def uneven_inputs(order):
    """Trains until the input ends, after 12 batches on host `order.host` and after 13 on the others."""
    last = 12 if jax.process_index() == order.host else 13
    config = replace(settings(order), workdir=f"{order.workdir}/uneven")
    trainer = Trainer(dense_task(), config)
    trained = trainer.train(lambda ctx: plain_batches(ctx, last, lambda _: None))
    yield "uneven", [trained.step, checksums(trained.state)]
    straight = Trainer(dense_task(), replace(config, workdir=f"{order.workdir}/straight"))
    yield "straight", [12, checksums(straight.train(plain_batches, max_steps=12).state)]


def predictions(order):
    """Predicts over several layouts, drops iterators at unlike places, then drops one on host `order.host` alone."""

    def means(variables, batch):
        image = batch["image"].astype(jnp.float32)
        of_all = jnp.broadcast_to(image.mean(), batch["_mask"].shape)
        return {"mean": image.mean((1, 2)), "of all": of_all}

    def input_fn(ctx):
        if ctx.mode == "train":
            return plain_batches(ctx)
        return NumberedInput(ctx, records=75)

    def trainer(model=1, devices=range(4)):
        config = settings(order, mesh=f"model={model}", iterations_per_loop=1)
        task = replace(dense_task(), predict_fn=means)
        return Trainer(task, config, [jax.devices()[i] for i in devices])

    trainer().train(input_fn, max_steps=1)
    layouts = {"data": {}, "model across the hosts": {"model": 2, "devices": [0, 2, 1, 3]}}
    for name, layout in layouts.items():
        for gather in (False, True):
            found = trainer(**layout).predict(input_fn, gather=gather)
            rows = [[int(record["_index"]), float(record["mean"])] for record in found]
            yield f"{name}, {gather}", rows
    mine = jax.process_index() == order.host
    for index, _ in enumerate(trainer().predict(input_fn, gather=True)):
        if index == (4 if mine else 20):  # of 16 records a dispatch: one has made a dispatch more
            break
    rows = []

    def collect(part):
        rows.extend(zip(part.index.tolist(), part.predictions["mean"].tolist(), strict=True))

    yield "after", trainer().evaluate(input_fn, on_records=collect).records
    yield "evaluated", rows
    for index, _ in enumerate(trainer().predict(input_fn, gather=True)):
        if mine and index == 4:
            Path(order.out, "died").write_text(str(time.time()))
            break
    yield "all" if not mine else "dropped", index


def main():
    order = SimpleNamespace(**json.loads(sys.argv[1]))
    logs.show()
    os.environ["XLA_FLAGS"] = order.xla_flags
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", order.devices)
    if getattr(order, "launched", False):
        place = {"coordinator_address": order.address, "coordinator_bind_address": order.address}
        jax.distributed.initialize(num_processes=order.count, process_id=order.index, **place)
    elif order.count > 1:
        place = {"coordinator_address": order.address, "num_processes": order.count}
        place = Distributed(**place, process_id=order.index)
        join(place, getattr(order, "host_timeout_seconds", 90))
    report, out = {}, Path(order.out, f"{order.index}.json")
    try:
        function = {each.__name__: each for each in ELSEWHERE} | globals()
        for name, seen in function[order.function](order):
            report[name] = seen
            out.write_text(json.dumps(report))  # supervision may end this process
    except BaseException as error:
        report["error"] = f"{type(error).__name__}: {error}"
        raise
    finally:
        out.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
