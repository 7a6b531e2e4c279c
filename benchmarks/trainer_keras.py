"""Keras 3 on JAX, a contender of bench_trainer in a process of its own: model.fit with steps_per_execution.

    python -m benchmarks.trainer_keras WORK STEPS

Reads from stdin how many looks a turn has, a line each, and answers with JSON: steps, seconds, CPU seconds."""

import json
import os
import sys

os.environ["KERAS_BACKEND"] = "jax"

import keras

from benchmarks.trainer_turns import Ended, Marks, Turn
from benchmarks.trainer_work import CLASSES, WORKS, Work


def model_of(work: Work) -> keras.Model:
    """The same layers, compiled with the same optimizer."""
    layers = [keras.Input(work.shape, dtype="uint8" if work.is_image else "float32")]
    if work.is_image:
        layers.append(keras.layers.Rescaling(1 / 127.5, -1.0))
    convs = [
        keras.layers.Conv2D(width, 3, strides=2, padding="same", activation="relu")
        for width in work.conv
    ]
    layers += [*convs, *([keras.layers.Flatten()] * bool(convs))]
    layers += [keras.layers.Dense(width, activation="relu") for width in work.dense]
    model = keras.Sequential([*layers, keras.layers.Dense(CLASSES)])
    optimizers = {
        "adamw": keras.optimizers.AdamW(1e-3, weight_decay=1e-4),
        "sgd": keras.optimizers.SGD(1e-2),
    }
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizers[work.optimizer], loss, steps_per_execution=work.k)
    return model


class Marking(keras.callbacks.Callback):
    """Marks every execution, once its loss is there: the progress bar, which is off, would read it as well."""

    def __init__(self, mark: Marks, k: int) -> None:
        super().__init__()
        self._mark, self._k, self._steps = mark, k, 0

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        float((logs or {})["loss"])
        self._steps += self._k
        self._mark(self._steps)


def tell(turn: Turn) -> None:
    """To the parent."""
    print(json.dumps(turn), flush=True)


def main() -> None:
    """Serves turns until stdin ends."""
    work, steps = WORKS[sys.argv[1]], int(sys.argv[2])
    mark = Marks(lambda: int(sys.stdin.readline() or 0), tell)
    batches = ((batch["image"], batch["label"]) for batch in work.batches())
    try:
        model_of(work).fit(
            batches, steps_per_epoch=steps, verbose=0, callbacks=[Marking(mark, work.k)]
        )
    except Ended:
        return


if __name__ == "__main__":
    main()
