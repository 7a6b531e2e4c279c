"""What a look returns: the same bits as the batches of training, or the first batch of an input that cannot draw."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from pipeline.datasets import train_dataset
from pipeline.ops import RandomShift
from pipeline.sources.open_dataset import open_dataset
from trainer.augment import color_jitter, mixup, one_hot
from trainer.inputs import INDEX
from trainer.step_functions import augmented
from trainer.trainer import Trainer

RECORDS, BATCH = 24, 8


def augment(batch):
    batch = color_jitter(batch, "image", brightness=0.5, contrast=0.5)
    return one_hot(batch, "label", 3, smoothing=0.1)


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (RECORDS, 6, 6, 3)).astype(np.uint8)
    return open_dataset({"image": pixels, "label": np.arange(RECORDS) // 3 % 3})


@pytest.fixture(scope="module")
def image_input(images):
    def input_fn(ctx):
        ops = [RandomShift("image", pixels=2)]
        return train_dataset(images, ops=ops, seed=5, global_batch=ctx.global_batch_size, hosts=ctx.hosts)

    return input_fn


@pytest.fixture
def looking(dense_task, config):
    return Trainer(replace(dense_task, augment=augment), config(global_batch_size=BATCH))


def test_a_record_has_the_same_bits_as_in_the_batch_of_training_of_that_epoch(looking, image_input, images):
    look = looking.look(image_input, records=BATCH, draws=3)
    assert look.numbers.tolist() == list(range(0, RECORDS, 3))
    assert not look.first_batch
    source = looking._job.open("train", image_input).source
    program = jax.jit(lambda batch: augmented(looking._job.task, batch))
    found = 0
    for epoch, draw in enumerate(look.draws):
        batches = source.batches(source.advance(source.start, epoch * RECORDS // BATCH))
        for _ in range(RECORDS // BATCH):
            trained = jax.device_get(program(next(batches)))
            for row in np.flatnonzero(np.isin(trained[INDEX], look.numbers)):
                at = look.numbers.tolist().index(trained[INDEX][row])
                for name in ("image", "labels", "_seed"):
                    assert trained[name][row].tobytes() == draw[name][at].tobytes(), (epoch, name)
                found += 1
        batches.close()
    assert found == 3 * BATCH
    assert look.draws[0]["image"].tobytes() != look.draws[1]["image"].tobytes()


def test_records_are_mixed_with_others_although_few_are_shown(looking, dense_task, image_input):
    def mixing(batch):
        return mixup(one_hot(batch, "label", 3), "image", "labels", alpha=1.0)

    looking = Trainer(replace(dense_task, augment=mixing), looking.config)
    look = looking.look(image_input, records=2, draws=1)
    assert (len(look.numbers), len(look.batch["labels"])) == (2, BATCH)
    assert (look.draws[0]["labels"].max(1) < 1).all()


def test_more_records_than_a_batch_has_are_not_drawn(looking, image_input):
    assert len(looking.look(image_input, records=100, draws=1).numbers) == BATCH


def test_rows_that_do_not_count_are_neither_shown_nor_part_of_the_batch(looking):
    count = np.array([1, 0, 1, 1, 0, 1, 1, 0], np.float32)
    image = np.zeros((BATCH, 6, 6, 3), np.float32)
    batch = {"image": image, "label": np.arange(BATCH), "_mask": count, "_seed": np.ones((BATCH, 2), np.uint32)}
    look = looking.look(lambda ctx: [batch])
    assert look.first_batch
    assert look.batch["label"].tolist() == look.draws[0]["label"].tolist() == [0, 2, 3, 5, 6]


def test_an_input_that_cannot_draw_again_shows_its_first_batch(looking, image_input, images):
    class Wrapped:
        """Passes everything on, but changes the batches: its records must not be drawn without the change."""

        def __init__(self, source):
            self._source = source

        def __getattr__(self, name):
            return getattr(self._source, name)

        def batches(self, position):
            for batch in self._source.batches(position):
                yield batch | {"image": np.zeros_like(batch["image"])}

    look = looking.look(lambda ctx: Wrapped(image_input(ctx)), records=3)
    assert (len(look.draws), look.first_batch) == (1, True)
    assert (look.draws[0]["image"] == 0).all()
    assert set(look.numbers.tolist()) <= set(range(RECORDS))
    labels = [example["label"] for example in images.examples()]
    assert look.draws[0]["label"].tolist() == [labels[number] for number in look.numbers]
    batch = {"image": np.zeros((BATCH, 6, 6, 3), np.float32), "label": np.arange(BATCH), "_seed": np.ones((BATCH, 2))}
    plain = looking.look(lambda ctx: [batch | {"_seed": batch["_seed"].astype(np.uint32)}], records=3)
    assert plain.numbers is None
    assert plain.draws[0]["label"].tolist() == [0, 2, 5]
