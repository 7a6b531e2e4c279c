"""Decoded records by number for grain: the rows of eval_dataset, in grain's own orders, threads and processes."""

import gzip
import pickle
import shutil
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from damage import flip
from pictures import encoded
from PIL import Image

from pipeline.datasets import eval_dataset
from pipeline.errors import CorruptRecordError, OptionError, RecordNumberError, SchemaError
from pipeline.grain import source
from pipeline.ops import CentralCrop, DecodeJpeg, RandomFlip
from pipeline.shards.frames import frame
from pipeline.shards.schema import Feature, Schema
from pipeline.spec import leaves

LABEL = "image/class/label"
OPS = (DecodeJpeg("image/encoded", shape=(8, 8, 1)), CentralCrop("image", size=(4, 6)))
BOXES = "image/object/bbox/xmin"
SCHEMA = Schema(
    "boxes",
    {
        "image/encoded": Feature("bytes", content="image"),
        LABEL: Feature("int64"),
        BOXES: Feature("float32", (None,), optional=True),
    },
)
OPTIONS = {"ops": {"ops": OPS}, "no ops": {}, "keys": {"ops": OPS, "keys": ["image"]}}


def record(i, boxes=()):
    image = encoded(Image.fromarray(np.full((8, 8), 20 * i, np.uint8)))
    return {"image/encoded": image, LABEL: i, BOXES: list(boxes)}


@pytest.fixture(scope="module")
def grain():
    return pytest.importorskip("grain")


@pytest.fixture(scope="module")
def boxes(write_dataset, tmp_path_factory):
    """Seven photographs with 0 to 3 boxes, in two shards."""
    records = [record(i, [i / 2] * (i % 4)) for i in range(7)]
    return write_dataset(
        tmp_path_factory.mktemp("boxes"), {"train": [records[:4], records[4:]]}, SCHEMA
    )


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
def test_records_are_the_rows_of_an_evaluation(boxes, options, together):
    (batch,) = eval_dataset(boxes, "train", global_batch=7, **options)
    del batch["_mask"]
    records = source(boxes, **options)
    rows = records.take(range(7)) if together else stacked([records[i] for i in range(7)])
    assert listed(rows) == listed(batch)


def stacked(records) -> Any:
    if isinstance(records[0], dict):
        return {key: stacked([record[key] for record in records]) for key in records[0]}
    return np.stack(records)


def listed(batch):
    return {path: (value.dtype, value.tolist()) for path, value in leaves(batch)}


def test_a_dict_of_arrays_is_a_source_and_its_records_are_copies():
    arrays = {"x": np.arange(6, dtype=np.int64).reshape(3, 2), "y": np.array([1.5, 2.5, 3.5])}
    records = source(arrays)
    records[1]["x"][:] = 9
    assert {key: (value.dtype.name, value.tolist()) for key, value in records[1].items()} == {
        "x": ("int32", [2, 3]),
        "y": ("float32", 2.5),
        "_index": ("int32", 1),
        "_crc": ("uint32", int(records[-2]["_crc"])),
    }


def test_grain_shuffles_and_batches_the_records(grain, images):
    records = source(images, ops=OPS)
    assert isinstance(records, grain.sources.RandomAccessDataSource)
    batches = list(grain.MapDataset.source(records).shuffle(seed=3).batch(16).to_iter_dataset())
    order = np.concatenate([batch["_index"] for batch in batches]).tolist()
    assert order != sorted(order) == list(range(40))
    assert [batch["image"].shape for batch in batches] == [(16, 4, 6, 1)] * 2 + [(8, 4, 6, 1)]
    crcs = sum(int(batch["_crc"].sum(dtype=np.uint64)) for batch in batches) % 2**32
    assert crcs == eval_dataset(images, "train", global_batch=8).info.expected_crc


def test_batches_of_shuffled_numbers_are_those_of_shuffled_records(grain, images):
    records = source(images, ops=OPS)
    one_by_one = grain.MapDataset.source(records).shuffle(seed=3).batch(16)
    numbers = grain.MapDataset.range(len(records)).shuffle(seed=3).batch(16).map(records.take)
    for ours, theirs in zip(numbers.to_iter_dataset(), one_by_one, strict=True):
        assert listed(ours) == listed(theirs)


@pytest.mark.timeout(120)
def test_worker_processes_of_grain_read_every_record_once(grain, images):
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # grain reads flags of absl where it starts workers
    dataset = grain.MapDataset.source(source(images, ops=OPS)).batch(10).to_iter_dataset()
    options = grain.MultiprocessingOptions(num_workers=2)
    order = np.concatenate([batch["_index"] for batch in dataset.mp_prefetch(options)])
    assert sorted(order.tolist()) == list(range(40))


def test_a_loader_resumes_with_a_copy_of_the_data_and_with_no_others(grain, images, tmp_path):
    def loader(directory, split="train"):
        sampler = grain.samplers.IndexSampler(21, shuffle=True, seed=1, num_epochs=1)
        batches = [grain.transforms.Batch(4)]
        records = source(directory, split, ops=OPS)
        return iter(grain.DataLoader(data_source=records, sampler=sampler, operations=batches))

    before = loader(images)
    next(before)
    state = before.get_state()
    copy = loader(shutil.copytree(images, tmp_path / "copy"))
    copy.set_state(state)
    assert listed(next(copy)) == listed(next(before))
    with pytest.raises(ValueError, match="fingerprint"):
        loader(images, "validation").set_state(state)


def test_a_pickled_copy_reads_the_same_records(images):
    records = source(images, ops=OPS)
    copy: Any = pickle.loads(pickle.dumps(records))
    assert repr(copy) == repr(records)
    assert listed(copy[7]) == listed(records[7])
    assert listed(copy.take([7, 3])) == listed(records.take([7, 3]))


@pytest.mark.parametrize("read", [lambda r: r[5], lambda r: r.take([1, 5])], ids=["[5]", "take"])
def test_a_damaged_record_is_named(write_dataset, tmp_path, read):
    data = write_dataset(tmp_path, {"train": [[record(i) for i in range(8)]]}, SCHEMA)
    (shard,) = tmp_path.glob("train-*-of-*")
    flip(shard, shard.read_bytes().index(record(5)["image/encoded"]) + 20)
    records = source(data, ops=OPS)
    with pytest.raises(
        CorruptRecordError, match=r"train-00000-of-00001, record 5 at byte \d+: crc32c"
    ):
        read(records)
    assert records.take([4, 6])["_index"].tolist() == [4, 6]


@pytest.mark.parametrize("read", [lambda r: r[2], lambda r: r.take([0, 2])], ids=["[2]", "take"])
def test_a_record_that_cannot_be_decoded_is_named(write_dataset, tmp_path, read):
    broken = record(2) | {"image/encoded": b"no image"}
    data = write_dataset(tmp_path, {"train": [[record(0), record(1), broken]]}, SCHEMA)
    with pytest.raises(SchemaError, match=r"\(record 2 of 'train'\): .*not a JPEG file"):
        read(source(data, ops=OPS))


def test_a_record_that_nobody_asks_for_may_be_broken(write_dataset, tmp_path):
    broken = record(0) | {"image/encoded": b"no image"}
    data = write_dataset(tmp_path, {"train": [[broken, record(1)]]}, SCHEMA)
    assert source(data, ops=OPS)[1]["_index"] == 1


def test_negative_numbers_count_from_the_end_and_others_do_not_exist(images):
    records = source(images, keys=[LABEL])
    assert len(records) == 40
    assert records[-1]["_index"] == records.take([-1])["_index"][0] == records[39]["_index"] == 39
    for number in (40, -41):
        with pytest.raises(RecordNumberError, match=f"record {number} does not exist"):
            records[number]
        with pytest.raises(IndexError):
            records.take([0, number])
    with pytest.raises(OptionError, match="is not a record's number"):
        records[0:2]  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Keyed:
    """Draws with a generator of its own."""

    reads = (LABEL,)

    def output_spec(self, specs):
        return {LABEL: specs[LABEL]}

    def __call__(self, features, rng):
        return {LABEL: np.random.default_rng(rng.key[0] % 2).integers(10)}


@pytest.mark.parametrize("op", [RandomFlip("image"), Keyed()], ids=lambda op: type(op).__name__)
def test_a_random_op_is_refused_before_any_record_is_asked_for(images, op):
    with pytest.raises(OptionError, match=rf"^{type(op).__name__}\(.*random_map"):
        source(images, ops=[*OPS, op])


def test_data_that_can_only_be_read_from_its_front_is_refused(tmp_path):
    (tmp_path / "train.tfrecord.gz").write_bytes(gzip.compress(frame(b"x") * 3))
    with pytest.raises(OptionError, match="can only be read from their front"):
        source(tmp_path / "train.tfrecord.gz")
