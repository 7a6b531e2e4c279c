"""The records of brought_programs.py, and Grain's datasets of them. Grain's workers import only this, without TensorFlow
and JAX."""

import grain
import numpy as np

RECORDS, BATCH = 107, 8
RNG = np.random.default_rng(0)
X = RNG.standard_normal((RECORDS, 4)).astype(np.float32)
Y = np.tanh(X @ RNG.standard_normal((4, 4)).astype(np.float32))


def element(number):
    return {"x": X[number], "y": Y[number]}


class Noise(grain.transforms.RandomMap):
    def random_map(self, element, rng):
        return element | {"x": element["x"] + rng.normal(0, 0.1, 4).astype(np.float32)}


def places():
    return grain.MapDataset.range(RECORDS).seed(3).shuffle().map(element).random_map(Noise())


def mixture():
    halves = [places()[:50].repeat(), places()[50:].repeat()]
    return grain.IterDataset.mix([half.to_iter_dataset() for half in halves], weights=[0.7, 0.3])


def failing(number):
    if number == 41:
        raise ValueError("record 41 is broken")
    return element(number)


def not_a_number(number):
    return element(number) | {"x": np.full(4, np.nan if number == 41 else 1, np.float32)}


def in_workers(dataset):
    workers = grain.MultiprocessingOptions(num_workers=2)
    return dataset.to_iter_dataset().batch(BATCH).mp_prefetch(workers)
