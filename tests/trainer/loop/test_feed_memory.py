"""What dispatches of several steps keep in memory, on devices and on the host, and that no batch changes meanwhile."""

import json
import subprocess
import sys

import pytest

BATCH, K, STEPS = 32, 13, 8 * 13
PROGRAM = """
import json, sys, tempfile, threading
import jax, jax.numpy as jnp, numpy as np, optax
from trainer.callbacks import Callback
from trainer.config import TrainerConfig
from trainer.inputs import InputInfo
from trainer.task import Task, Variables
from trainer.trainer import Trainer

batch, k, steps, mode = json.loads(sys.argv[1])
losses, most, ended = [], {"devices": 0, "host": 0}, threading.Event()

class Numbered:
    def __init__(self):
        self.info = InputInfo(self.made(0), "numbered", start=0)

    def made(self, number):
        return {"image": np.full((batch, 224, 224, 3), number, np.uint8), "_mask": np.ones(batch, np.float32)}

    def batches(self, position):
        threading.Thread(target=watch, args=(resident(),), daemon=True).start()
        for number in range(position, 10**9):
            yield self.made(number % 256)

    def advance(self, position, batches): return position + batches
    def state(self, position): return {"position": position}
    def restore(self, state): return state["position"]

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def watch(before):
    while not ended.wait(0.002):
        live = sum(array.nbytes for array in jax.live_arrays() if array.dtype == jnp.uint8)
        most["devices"], most["host"] = max(most["devices"], live), max(most["host"], resident() - before)

def loss(variables, batch, rng, train):
    images = batch["image"].reshape(batch["image"].shape[0], -1)
    numbers = images[:, ::1001].astype(jnp.float32).mean(1)
    slow = jax.lax.fori_loop(0, 30, lambda _, x: jnp.tanh(x @ x), jnp.eye(400))
    return numbers + 0 * slow.sum() + 0 * variables.params["w"], variables, None

class Losses(Callback):
    def on_loop_end(self, event):
        losses.extend(event.scalars["loss"].tolist())  # the number of each batch

task = Task(init=lambda key, spec: Variables({"w": jnp.zeros(())}), loss_fn=loss, optimizer=optax.sgd(0.0))
with tempfile.TemporaryDirectory() as workdir:
    config = TrainerConfig(workdir=workdir, global_batch_size=batch, iterations_per_loop=k, log_every=k, loop_mode=mode,
                           checkpoint_every_steps=None)
    Trainer(task, config, callbacks=[Losses()]).train(lambda context: Numbered(), steps=steps)
ended.set()
chunk = k * batch * 224 * 224 * 3
print(json.dumps({name: value / chunk for name, value in most.items()} | {"losses": losses}))
"""


@pytest.mark.parametrize("mode", ["scan", "step"])
def test_three_super_batches_on_a_device_and_six_on_the_host_are_the_most(mode):
    command = [sys.executable, "-c", PROGRAM, json.dumps([BATCH, K, STEPS, mode])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["devices"] <= 3
    assert found["host"] <= 6
    assert found["losses"] == [*range(STEPS)]
