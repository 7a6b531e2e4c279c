"""bench_resume.py [--steps N] [--kills N] [--programs NAME ...]: what resuming a training on a program of tf.data costs,
and whether it changes a bit.

For each program: CPU seconds of ten steps from step 0, of N steps, and of the ten that follow after a restart; then a run
that is killed at random moments, and compared with the straight one. Needs the shards of README's block 1 in `shards`."""

import argparse
import hashlib
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time

KEYS = ["image/encoded", "image/class/label"]
ENV = os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0", "JAX_PLATFORMS": "cpu"}


def train(name: str, workdir: str, steps: int) -> None:
    """Prints the hash of the parameters."""
    import jax.numpy as jnp
    import numpy as np
    import optax

    from infeed import Task, Trainer, TrainerConfig, Variables, open_dataset, tf_data
    from pipeline.tf_cpu import tf

    files = sorted(tf.io.gfile.glob("shards/train-*"))

    def decoded(e):
        image = tf.io.decode_jpeg(e.pop("image/encoded"), channels=1, dct_method="INTEGER_ACCURATE")
        label = e.pop("image/class/label") - 1
        return {"image": tf.ensure_shape(image, (32, 32, 1)), "label": label}

    def parsed(record):
        bytes_of, number = (tf.io.FixedLenFeature([], t) for t in (tf.string, tf.int64))
        return decoded(
            tf.io.parse_single_example(record, dict(zip(KEYS, (bytes_of, number), strict=True)))
        )

    def readme(ctx):
        records = open_dataset("shards", "train")
        found = tf_data.examples(records, keys=KEYS, shuffle=True, hosts=ctx.hosts)
        return found.map(decoded, tf.data.AUTOTUNE)

    def big_vision(_):
        slices = tf.data.Dataset.from_tensor_slices(files)
        records = slices.interleave(tf.data.TFRecordDataset, num_parallel_calls=2)
        return records.repeat().shuffle(1000, seed=3).map(parsed, tf.data.AUTOTUNE)

    def tf_models(_):
        listed = tf.data.Dataset.list_files("shards/train-*", shuffle=True, seed=7)
        records = listed.interleave(
            tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE
        )
        return records.repeat().shuffle(512, seed=9).map(parsed, tf.data.AUTOTUNE)

    def shuffle(_):
        return tf.data.TFRecordDataset(files).shuffle(4096, seed=5).map(parsed, tf.data.AUTOTUNE)

    def cached(_):
        return tf.data.TFRecordDataset(files).map(parsed).cache().shuffle(2000, seed=5)

    def training(ctx):
        return tf_data.training_batches(
            locals_[name](ctx), ctx.global_batch_size, ctx.hosts, per_host=name == "readme"
        )

    locals_ = {each.__name__: each for each in (readme, big_vision, tf_models, shuffle, cached)}

    def loss_fn(variables, batch, rng, train):
        logits = batch["image"].reshape(-1, 1024) / 255 @ variables.params
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        return losses, variables, logits

    task = Task(lambda rng, batch: Variables(jnp.zeros((1024, 10))), loss_fn, optax.adam(1e-3))
    trainer = Trainer(task, TrainerConfig(workdir=workdir, global_batch_size=64))
    params = trainer.train(training, max_steps=steps).state.variables.params
    print("bits", hashlib.sha256(np.asarray(params).tobytes()).hexdigest()[:12])


def started(name: str, workdir: str, steps: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--train", name, workdir, str(steps)]
    out = subprocess.PIPE
    return subprocess.Popen(command, env=ENV, stdout=out, stderr=subprocess.STDOUT, text=True)


def measured(name: str, workdir: str, steps: int) -> tuple[str, float]:
    """The bits, and CPU seconds with those of the imports."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = started(name, workdir, steps).communicate()[0]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "bits" in out, out
    if "runs from its beginning" in out or "will run again" in out:
        print(out)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return out.split()[-1], seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", nargs=3)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--kills", type=int, default=0)
    programs = ["readme", "big_vision", "tf_models", "shuffle", "cached"]
    parser.add_argument("--programs", nargs="*", default=programs)
    options = parser.parse_args()
    if options.train:
        name, workdir, steps = options.train
        train(name, workdir, int(steps))
        return
    end = options.steps + 10
    for name in options.programs:
        with tempfile.TemporaryDirectory() as place:
            _, start = measured(name, f"{place}/start", 10)
            straight, _ = measured(name, f"{place}/straight", end)
            _, of_run = measured(name, f"{place}/run", options.steps)
            bits, resumed = measured(name, f"{place}/run", end)
            print(
                f"{name}: {start:.1f} CPU s for 10 steps, {of_run:.1f} for {options.steps}, "
                f"{resumed:.1f} for 10 more after a restart",
                flush=True,
            )
            assert bits == straight
            for _ in range(options.kills):
                process = started(name, f"{place}/killed", options.steps)
                time.sleep(random.uniform(4, 4 + of_run / options.kills))
                process.send_signal(random.choice((signal.SIGKILL, signal.SIGTERM)))
                process.communicate()
            if options.kills:
                bits, _ = measured(name, f"{place}/killed", end)
                print(f"{name}: after {options.kills} kills {bits} == {straight}", flush=True)
                assert bits == straight


if __name__ == "__main__":
    main()
