"""What test_predictions_on_hosts.py has its processes do."""

import time
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
from host_task import NumberedInput, dense_task, plain_batches, settings

from trainer.trainer import Trainer


def predictions(order):
    """Predicts over several layouts, drops iterators at unlike places, then drops one on host `order.host` alone."""

    def means(variables, batch):
        image = batch["image"].astype(jnp.float32)
        return {"mean": image.mean((1, 2)), "of all": jnp.broadcast_to(image.mean(), batch["_mask"].shape)}

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
            found = list(trainer(**layout).predict(input_fn, gather=gather))
            yield f"{name}, {gather}", [[int(record["_index"]), float(record["mean"])] for record in found]
    mine = jax.process_index() == order.host
    for index, _ in enumerate(trainer().predict(input_fn, gather=True)):
        if index == (4 if mine else 20):  # of 16 records a dispatch: one has made a dispatch more
            break
    parts = []
    yield "after", trainer().evaluate(input_fn, on_records=parts.append).records
    yield (
        "evaluated",
        [
            [int(index), float(mean)]
            for part in parts
            for index, mean in zip(part.index, part.predictions["mean"], strict=True)
        ],
    )
    for index, _ in enumerate(trainer().predict(input_fn, gather=True)):
        if mine and index == 4:
            Path(order.out, "died").write_text(str(time.time()))
            break
    yield "all" if not mine else "dropped", index
