"""What test_tf_programs_on_hosts.py has its processes do."""

import signal
import time
from dataclasses import replace
from functools import partial

import jax
import numpy as np
from host_preemption import AtStep
from host_task import LABEL, checksums, class_scores, dense_task, error_of, settings

from trainer.callbacks import Callback
from trainer.hosts import activity
from trainer.trainer import Trainer

RECORDS, BATCH, STOP, STEPS = 75, 16, 10, 20
TESTED, SAVED, END = 30, 40, 60  # steps of a program with states: the first is tested by then
RAW = "raw"
OWN, WITH_STATES = (
    "programs of each host",
    "a program with states",
)  # printed before their parts of the log
PATIENCE_SECONDS = 150.0  # beside other suites, a host may stand still for 15 s


class Late(Callback):
    def on_loop_end(self, end):
        time.sleep(0.3)


class Trusting(Callback):
    """Makes programs by `make`, whose states are saved as often as may be, and waits until this host has tested the
    first, if it saves any."""

    def __init__(self, make):
        from pipeline.inputs import iterator_states

        iterator_states.EVERY_SECONDS, iterator_states.TEST_SECONDS = 0.0, PATIENCE_SECONDS
        self.make = make

    def training(self, ctx):
        self.source = self.make(ctx)
        return self.source

    def on_loop_end(self, end):
        source = self.source.infeed_input
        stop = time.monotonic() + PATIENCE_SECONDS
        while end.step == TESTED and source.saves and source.iterator_states.obstacle != "":
            assert time.monotonic() < stop
            time.sleep(0.01)


def trained(order, name, make, *stops):
    """The bits after a training with states of its program that stops at these steps."""
    for stop in stops:
        trusting = Trusting(make)
        config = replace(settings(order), workdir=f"{order.workdir}/{name}")
        trainer = Trainer(dense_task(), config, callbacks=[trusting])
        state = trainer.train(trusting.training, max_steps=stop).state
    return checksums(state)


def programs(order):
    """Complete programs on every host, then those of which each has its part: in one start of the processes."""
    yield from complete_programs(order)
    print(OWN, flush=True)
    yield from own_programs(order)


def complete_programs(order):
    """Trains on a program of its own, also after a stop, and evaluates; then in ways that must end with an error."""
    from pipeline import tf_data
    from pipeline.tf_cpu import tf

    rng = np.random.default_rng(0)
    arrays = {"image": rng.integers(0, 256, (RECORDS, 8, 8)).astype(np.uint8)}
    arrays[LABEL] = rng.integers(1, 11, RECORDS)
    examples = tf.data.Dataset.from_tensor_slices(arrays)

    def program(seed):
        def input_fn(ctx):  # makes it anew: another iteration of the same one has another order
            shuffled = examples.shuffle(RECORDS, seed=seed)
            mapped = shuffled.map(lambda example: example, num_parallel_calls=2)
            return tf_data.training_batches(mapped, BATCH, ctx.hosts)

        return input_fn

    def evaluated(ctx):
        return tf_data.evaluation_batches(examples, BATCH, ctx.hosts)

    def trainer(name):
        task = replace(dense_task(), predict_fn=class_scores)
        return Trainer(task, replace(settings(order), workdir=f"{order.workdir}/{name}"))

    yield "straight", trained(order, "program", program(1), END)
    yield "stopped", trained(order, "stopped", program(1), SAVED, END)
    result = trainer("stopped").evaluate(evaluated)
    yield "evaluated", [result.metrics, result.records, result.num_records, result.proven]
    if order.count > 1:
        itself = tf_data.evaluation_batches(examples, BATCH)
        yield "itself", error_of(lambda: trainer("program").evaluate(itself))
        # as without a seed, but surely different
        shuffled = examples.shuffle(RECORDS, seed=jax.process_index())

        def unlike(ctx):
            return tf_data.evaluation_batches(shuffled, BATCH, ctx.hosts)

        yield "unlike", error_of(lambda: trainer("program").evaluate(unlike))

        def of_host(ctx):
            return tf_data.evaluation_batches(examples, ctx.per_host_batch_size)

        yield "per host", error_of(lambda: trainer("program").evaluate(of_host))
        mapped = trainer("program").predict(lambda ctx: unlike(ctx).map(lambda batch: batch))
        yield "mapped", len(list(mapped))
        other = program(jax.process_index())
        unlike_training = error_of(lambda: trainer("unlike").train(other, max_steps=STEPS))
        yield "training unlike", unlike_training


def own_parts(order, computed):
    """{kind: (input_fn of the training, of the evaluation)}, of which each host computes only its part; `computed` gets
    the number of every example that this one computes."""
    import grain

    from pipeline import grain as infeed_grain
    from pipeline import tf_data
    from pipeline.datasets import open_dataset
    from pipeline.tf_cpu import tf

    records = open_dataset(order.data_dir, "train")

    def seen(number):
        computed.append(int(number))
        return number

    def decoded(element):
        image = tf.reshape(tf.io.decode_raw(element[RAW], tf.uint8), (8, 8))
        label = tf.cast(element[LABEL], tf.int32)
        return {"image": image, LABEL: label, "_crc": element["_crc"]}

    def noted(element):
        number = tf.ensure_shape(tf.numpy_function(seen, [element["_index"]], tf.int32), [])
        return decoded(element) | {"_index": number}

    def element(number):
        values = records.examples()[seen(number)]
        image = np.frombuffer(values[RAW], np.uint8).reshape(8, 8)
        found = {"image": image, LABEL: np.int32(values[LABEL]), "_index": np.int32(number)}
        return found | {"_crc": records.info.crcs[number]}

    places = grain.MapDataset.range(RECORDS).map(element)

    def own(ctx):
        return grain.MapDataset.range(RECORDS)[ctx.hosts.index :: ctx.hosts.count].map(element)

    def batches(dataset, ctx, decode=noted):
        training = ctx.mode == "train"
        make = tf_data.training_batches if training else tf_data.evaluation_batches
        proven = {} if training else {"records": records}
        return make(dataset.map(decode), BATCH, ctx.hosts, per_host=True, **proven)

    def grain_batches(dataset, ctx, **options):
        options |= {"records": records}
        return infeed_grain.evaluation_batches(dataset, BATCH, ctx.hosts, **options)

    def examples(ctx, decode=noted):
        shuffled = {"shuffle": True, "seed": 1, "window_records": 16}
        options = shuffled if ctx.mode == "train" else {}
        return batches(tf_data.examples(order.data_dir, hosts=ctx.hosts, **options), ctx, decode)

    def sharded(ctx):
        part = tf_data.examples(order.data_dir).shard(ctx.hosts.count, ctx.hosts.index)
        return batches(part.shuffle(RECORDS, seed=1) if ctx.mode == "train" else part, ctx)

    def iterated(ctx):
        if ctx.mode == "train":
            return own(ctx).shuffle(seed=1).repeat().to_iter_dataset()
        return grain_batches(own(ctx).to_iter_dataset(), ctx, num_records=len(own(ctx)))

    return {
        "tf.data": (examples, examples),
        "tf.data, sharded by its user": (sharded, sharded),
        "MapDataset": (lambda: places.shuffle(seed=1), lambda ctx: grain_batches(places, ctx)),
        "IterDataset": (iterated, iterated),
        "with states": (partial(examples, decode=decoded), examples),
    }


def own_programs(order):
    """Trains and evaluates on programs of which each host computes only its part, also after a stop, and tells how many
    examples it computed for an evaluation and for the training; then on one whose states are saved."""
    computed = []
    kinds = own_parts(order, computed)

    def trainer(name, *callbacks):
        config = replace(settings(order), workdir=f"{order.workdir}/{name}")
        return Trainer(dense_task(), config, callbacks=callbacks)

    for kind in order.kinds:
        training, evaluation = kinds[kind]
        steps = 6 * STEPS if kind == "tf.data" else STEPS  # so that what is read ahead is little
        computed.clear()
        result = trainer(kind).train(training, max_steps=steps)
        report = {"state": checksums(result.state), "computed in training": [*computed]}
        computed.clear()
        result = trainer(kind).evaluate(evaluation)
        report |= {"metrics": result.metrics, "computed": [*computed]}
        report["counted"] = [result.records, result.num_records, result.proven]
        trainer(f"{kind}, stopped").train(training, max_steps=STOP)
        again = trainer(f"{kind}, stopped").train(training, max_steps=steps)
        yield kind, report | {"stopped": checksums(again.state)}
    print(WITH_STATES, flush=True)
    training, _ = kinds["with states"]
    straight = trained(order, "states", training, END)
    yield WITH_STATES, [straight, trained(order, "states, stopped", training, SAVED, END)]
    if order.count > 1:
        training, _ = kinds["IterDataset"]
        # One that stands still for 10 s after the signal would end without saving.
        activity.ASKED_SECONDS = PATIENCE_SECONDS
        activity.Activity.doing.__kwdefaults__["grace"] = PATIENCE_SECONDS
        late = Late() if jax.process_index() else Callback()  # the first host waits for the others
        trainer("signalled", AtStep(signal.SIGTERM), late).train(training, max_steps=10**6)
