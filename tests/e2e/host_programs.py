"""What test_tf_programs_on_hosts.py has its processes do."""

from dataclasses import replace

import jax
import numpy as np
from host_task import LABEL, checksums, class_scores, dense_task, error_of, settings

from trainer.trainer import Trainer

RECORDS, BATCH, STOP, STEPS = 75, 16, 10, 20


def programs(order):
    """Trains and evaluates on a program of its own, also after a stop; then in ways that must end with an error."""
    from pipeline import tf_data
    from pipeline.tf_cpu import tf

    rng = np.random.default_rng(0)
    arrays = {"image": rng.integers(0, 256, (RECORDS, 8, 8)).astype(np.uint8)}
    arrays[LABEL] = rng.integers(1, 11, RECORDS)
    examples = tf.data.Dataset.from_tensor_slices(arrays)

    def program(seed):
        return lambda ctx: tf_data.training_batches(
            examples.shuffle(RECORDS, seed=seed).map(lambda example: example, num_parallel_calls=2),
            BATCH,
            ctx.hosts,
        )

    def evaluated(ctx):
        return tf_data.evaluation_batches(examples, BATCH, ctx.hosts)

    def trainer(name):
        task = replace(dense_task(), predict_fn=class_scores)
        return Trainer(task, replace(settings(order), workdir=f"{order.workdir}/{name}"))

    def report(name, training, evaluation, *stops):
        for step in stops:
            trained = trainer(name).train(training, max_steps=step)
        result = trainer(name).evaluate(evaluation)
        return [
            checksums(trained.state),
            result.metrics,
            result.records,
            result.num_records,
            result.proven,
        ]

    yield "program", report("program", program(1), evaluated, STEPS)
    yield "program, stopped", report("stopped", program(1), evaluated, STOP, STEPS)
    if order.count > 1:
        yield (
            "itself",
            error_of(
                lambda: trainer("program").evaluate(tf_data.evaluation_batches(examples, BATCH))
            ),
        )
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
        yield (
            "training unlike",
            error_of(
                lambda: trainer("unlike").train(program(jax.process_index()), max_steps=STEPS)
            ),
        )
