"""The records of a host as a tf.data.Dataset: which ones, in which order, checked, saved, and in Keras."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_files import encode_index
from pictures import encoded
from PIL import Image
from sweep import SWEEP
from tfrecord_numbers import payload as number_record

from pipeline import tf_data
from pipeline.commands import index
from pipeline.datasets import eval_dataset, open_dataset
from pipeline.errors import EmptySplitError, OptionError
from pipeline.hosts import ONE_HOST, Hosts
from pipeline.inputs.tf_examples import host_counts
from pipeline.ops import DecodeJpeg
from pipeline.shards.frames import frame, read_frames
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.shards.split_index import INDEX_HEADER_BYTES, INDEX_ROW_BYTES
from pipeline.sources.in_memory import ExampleRecords
from pipeline.tf_cpu import tf

SIZES = (9, 0, 4, 7, 1, 5, 6, 8)


def numbers(dataset):
    return [int(element["number"]) for element in dataset.as_numpy_iterator()]


@settings(max_examples=12 if SWEEP else 3)
@given(
    count=st.integers(2, 9),
    sizes=st.sampled_from([SIZES, (40,), (5, 0, 3)]),
    split=st.sampled_from(["train", "train[2:7]", "train[3:5]+validation"]),
    shuffle=st.booleans(),
)
def test_hosts_have_each_record_once_with_its_number_and_checksum(
    numbers_of, count, sizes, split, shuffle
):
    data = numbers_of(*sizes)
    records = open_dataset(data, split)
    stored = [int(each["number"]) for each in records.examples()]
    counts = host_counts(records, count)
    assert sum(counts) == len(records)
    seen = dict[int, int]()
    for host in range(count):
        dataset = tf_data.examples(
            data, split, hosts=Hosts(host, count), shuffle=shuffle, epochs=1, window_records=3
        )
        found = list(dataset.as_numpy_iterator())
        assert len(found) == counts[host] == dataset.cardinality()
        for element in found:
            assert element["_index"] not in seen
            assert stored[element["_index"]] == element["number"]
            seen[int(element["_index"])] = int(element["_crc"])
    assert [seen[number] for number in range(len(records))] == np.asarray(
        records.info.crcs
    ).tolist()


def test_hosts_share_complete_files_evenly_and_read_no_others(numbers_of, tmp_path):
    data = Path(shutil.copytree(numbers_of(*SIZES), tmp_path / "data"))
    assert max(host_counts(open_dataset(data), 4)) <= 11  # of 40 records
    shards = sorted(data.glob("train-*"))
    for host in range(4):
        dataset = tf_data.examples(data, hosts=Hosts(host, 4))
        found = numbers(dataset)
        contents = {shard: shard.read_bytes() for shard in shards}
        starts = np.cumsum([0, *SIZES])
        for shard, first, end in zip(shards, starts, starts[1:], strict=False):
            if not set(range(first, end)) & set(found):
                shard.write_bytes(b"\xff" * len(contents[shard]))
        assert numbers(dataset) == found
        for shard, content in contents.items():
            shard.write_bytes(content)


def test_each_epoch_has_another_order_of_all_records_which_the_seed_determines(numbers_of):
    data = numbers_of(*SIZES)

    def epochs(seed, count=3):
        dataset = tf_data.examples(data, shuffle=True, seed=seed, window_records=8)
        assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
        return np.reshape(numbers(dataset.take(count * 40)), (count, 40)).tolist()

    first = epochs(1)
    assert all(sorted(epoch) == list(range(40)) for epoch in first)
    assert len({tuple(epoch) for epoch in [*first, *epochs(2)]}) == 6
    assert epochs(1) == first
    assert numbers(tf_data.examples(data)) == list(range(40))
    assert numbers(tf_data.examples(data, epochs=2)) == [*range(40)] * 2


def test_an_iterator_is_saved_and_restored_by_tensorflows_checkpoint(numbers_of, tmp_path):
    dataset = tf_data.examples(numbers_of(*SIZES), shuffle=True, seed=3, window_records=8)
    batches = dataset.map(lambda element: element["number"]).batch(7)
    iterator = iter(batches)
    for _ in range(9):  # into the second epoch
        next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "saved"))
    expected = [next(iterator).numpy().tolist() for _ in range(9)]
    restored = iter(batches)
    tf.train.Checkpoint(iterator=restored).restore(path)
    assert [next(restored).numpy().tolist() for _ in range(9)] == expected


def test_features_are_parsed_as_stored_and_bytes_are_left_as_they_are(images):
    ours = list(open_dataset(images, "validation").examples())
    for element, own in zip(tf_data.examples(images, "validation"), ours, strict=True):
        assert element.keys() == own.keys() | {"_index", "_crc"}
        for key, value in own.items():
            np.testing.assert_array_equal(element[key].numpy(), value, err_msg=key)
    parsed = tf_data.examples(images, "validation", keys=["image/class/label"])
    assert parsed.element_spec.keys() == {"image/class/label", "_index", "_crc"}
    payloads = [each["record"].numpy() for each in tf_data.examples(images, "validation", keys=())]
    assert payloads == list(open_dataset(images, "validation"))
    spec = tf_data.feature_spec(images)
    assert tf.io.parse_single_example(payloads[3], spec)["image/class/label"] == 4


def test_an_evaluation_of_its_records_states_what_proves_it(images):
    records = open_dataset(images, "validation")

    def decoded(element):
        image = tf.ensure_shape(tf.io.decode_jpeg(element["image/encoded"], 1), (8, 8, 1))
        return {"image": image} | {key: element[key] for key in ("_index", "_crc")}

    expected = eval_dataset(
        images, global_batch=8, ops=[DecodeJpeg("image/encoded", shape=(8, 8, 1))]
    )
    crc = 0
    for host in range(2):
        hosts = Hosts(host, 2)
        examples = tf_data.examples(images, "validation", hosts=hosts).map(decoded)
        batches = tf_data.evaluation_batches(examples, 8, hosts, per_host=True, records=records)
        info = batches.infeed_input.info
        assert (info.num_records, info.expected_crc) == (21, expected.info.expected_crc)
        # 21 records in shards of 8 and 13: four batches of four on each host
        assert len(list(batches)) == info.steps_per_epoch == batches.cardinality() == 4
        for batch in batches.infeed_input.batches(0):
            assert (batch["_index"][batch["_mask"] == 0] == -1).all()
            crc += int(batch["_crc"].sum(dtype=np.uint64))
    assert crc % 2**32 == expected.info.expected_crc


@pytest.mark.parametrize("page", ["README.md", "docs/frameworks.md"])
def test_programs_of_the_guides_decode_the_pixels_of_decode_jpeg(page):
    text = (Path(__file__).parents[2] / page).read_text()
    (decoding,) = re.findall(r" = (tf\.io\.decode_jpeg\(jpeg.*\))\n.* \(32, 32, 1\)", text)
    noise = np.random.default_rng(5).integers(0, 256, (4, 4, 3), np.uint8)
    for mode in ("RGB", "L"):
        jpeg = encoded(Image.fromarray(noise).resize((32, 32)).convert(mode), quality=90)
        expected = DecodeJpeg("x", into="y", shape=(32, 32, 1))({"x": jpeg}, None)["y"]
        np.testing.assert_array_equal(eval(decoding, {"tf": tf, "jpeg": jpeg}), expected)


@pytest.mark.parametrize("hosts", [ONE_HOST, Hosts(1, 2)], ids=str)
def test_endless_batches_of_its_records_know_how_many_an_epoch_has(numbers_of, hosts):
    data = numbers_of(*SIZES)
    examples = tf_data.examples(data, hosts=hosts, shuffle=True)
    batches = tf_data.training_batches(
        examples, 8, hosts, per_host=True, records=open_dataset(data)
    )
    info = batches.infeed_input.info
    assert (info.num_records, info.steps_per_epoch, info.endless) == (sum(SIZES), None, True)


def test_pairs_for_keras_have_as_many_batches_on_every_host(numbers_of):
    records = open_dataset(numbers_of(*SIZES))
    masks = []
    for host, own in enumerate(host_counts(records, 4)):
        pairs = tf_data.examples(numbers_of(*SIZES), hosts=Hosts(host, 4)).map(
            lambda element: (element["half"], element["number"])
        )
        batches = tf_data.evaluation_batches(
            pairs, 8, Hosts(host, 4), per_host=True, records=records
        )
        masks.append(np.concatenate([mask for _, _, mask in batches.as_numpy_iterator()]))
        assert masks[-1].sum() == own
    assert {mask.shape for mask in masks} == {(12,)}  # 11 records at most, two in a batch


@pytest.mark.parametrize(
    ("damage", "number", "shuffle"),
    [
        (lambda data, at: data[: at + 20] + b"\xff" + data[at + 21 :], 1, True),
        (lambda data, at: data[: at + 20] + b"\xff" + data[at + 21 :], 1, False),
        (lambda data, at: data[: at + 8] + b"\xff" + data[at + 9 :], 1, False),  # of the frame
        (lambda data, _: data[:-40], 2, True),
        (lambda data, at: data[:at], 1, False),
        (lambda data, _: b"", 0, True),
    ],
    ids=["a byte", "a byte in order", "a frame", "the end", "whole records", "all"],
)
def test_a_damaged_record_is_named_by_file_number_and_offset(
    numbers_of, tmp_path, damage, number, shuffle
):
    data = shutil.copytree(numbers_of(5, 0, 3), tmp_path / "data")
    records = open_dataset(data)
    dataset = tf_data.examples(data, "train", shuffle=shuffle)
    shard = sorted(Path(data).glob("train-*"))[2]
    offsets = [each.offset for each in read_frames([shard.read_bytes()], None)]
    shard.write_bytes(damage(shard.read_bytes(), offsets[1]))
    where = f"{shard}, record {number} at byte {offsets[number]} "
    with pytest.raises(tf.errors.UnknownError, match=re.escape(where)) as raised:
        list(dataset.take(9))
    assert f"`{records.source.info.verify_command}` checks all of them" in raised.value.message


def test_files_of_one_class_each_are_mixed(tmp_path):
    """92 of a hundred classes are in 256 records of a true shuffle."""
    for number in range(100):
        data = frame(number_record(number)) * 30
        (tmp_path / f"train-{number:05d}-of-00100").write_bytes(data)
    index.main([str(tmp_path)])
    batches = tf_data.examples(str(tmp_path), "train", shuffle=True).batch(256).take(10)
    counts = [len(np.unique(batch["i"])) for batch in batches.as_numpy_iterator()]
    assert np.mean(counts) >= 92


def test_another_shard_in_place_of_one_is_an_error(images, numbers_of, tmp_path):
    data = shutil.copytree(images, tmp_path / "data")
    first, second = sorted(Path(data).glob("validation-*"))
    dataset = tf_data.examples(data, "validation")
    first.write_bytes(second.read_bytes())
    with pytest.raises(tf.errors.UnknownError, match=f"{first}, record 0 at byte 0 "):
        list(dataset)
    # of the same lengths, so that its size is as in the manifest
    data = shutil.copytree(numbers_of(4, 4), tmp_path / "numbers")
    first, second = sorted(Path(data).glob("train-*"))
    first.write_bytes(second.read_bytes())
    with pytest.raises(tf.errors.UnknownError, match=f"{first}, record 0 at byte 0 "):
        list(tf_data.examples(data, shuffle=True).take(8))


def test_a_host_reads_nothing_before_its_own_records_of_a_file(numbers_of, tmp_path):
    data = Path(shutil.copytree(numbers_of(40), tmp_path / "data"))
    (shard,) = data.glob("train-*")
    frame = shard.stat().st_size // 40
    contents = shard.read_bytes()
    for host in range(8):
        dataset = tf_data.examples(data, hosts=Hosts(host, 8))
        begin, end = 5 * host * frame, 5 * (host + 1) * frame
        shard.write_bytes(b"\xff" * begin + contents[begin:end] + b"\xff" * (len(contents) - end))
        assert len(numbers(dataset)) == 5


@pytest.mark.parametrize("count", [0, 1, 12345, 10**6])
def test_the_header_of_an_index_has_always_the_same_size(count):
    data = encode_index(np.zeros((count, 2), np.uint32))
    assert len(data) == INDEX_HEADER_BYTES + count * INDEX_ROW_BYTES


def test_what_tensorflow_cannot_read_is_refused(numbers_of, tmp_path):
    with pytest.raises(OptionError, match="not made of indexed TFRecord files"):
        tf_data.examples({"x": np.arange(3)})
    with pytest.raises(OptionError, match="no feature 'numbr'. Did you mean 'number'"):
        tf_data.examples(numbers_of(5), keys=["numbr"])
    with pytest.raises(EmptySplitError, match=r"host 0 of 9 has none of its 5 records"):
        tf_data.examples(numbers_of(5), hosts=Hosts(0, 9), shuffle=True)
    with pytest.raises(OptionError, match="epochs=0"):
        tf_data.examples(numbers_of(5), epochs=0)
    with pytest.raises(OptionError, match="no feature 'numbr'. Did you mean 'number'"):
        tf_data.feature_spec(numbers_of(5), ["numbr"])


@pytest.mark.slow
def test_keras_fits_and_evaluates_on_it(numbers_of):
    import keras

    data = numbers_of(*SIZES)

    def pairs(dataset):
        return dataset.map(
            lambda e: (tf.reshape(e["half"] / 20, [1]), tf.cast(e["number"], tf.float32) / 40)
        )

    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), "mse", weighted_metrics=["mae"])
    training = pairs(tf_data.examples(data, shuffle=True, seed=1))
    model.fit(
        tf_data.training_batches(training, 8, per_host=True),
        epochs=2,
        steps_per_epoch=50,
        shuffle=False,
        verbose=0,
    )
    evaluation = pairs(tf_data.examples(data))
    loss, error = model.evaluate(
        tf_data.evaluation_batches(evaluation, 16, ONE_HOST, per_host=True), verbose=0
    )
    inputs = np.arange(40, dtype=np.float32) / 40
    predicted = model.predict(inputs[:, None], verbose=0)[:, 0]
    assert error == pytest.approx(np.abs(predicted - inputs).mean(), rel=1e-4)
    assert loss < 1e-2


def test_datasets_that_number_their_classes_differently_are_refused():
    schema = Schema("rows", {"kind": Feature("int64")})
    both = [
        ExampleRecords("rows", schema, [{"kind": 0}, {"kind": 1}], Labels("kind", 0, names))
        for names in (("cat", "dog"), ("dog", "cat"))
    ]
    batches = tf.data.Dataset.from_tensors({"kind": np.zeros(4, np.int64)})
    for read in (
        lambda: tf_data.examples(both),
        lambda: tf_data.examples(both, keys=()),
        lambda: tf_data.evaluation_batches(batches, 4, ONE_HOST, records=open_dataset(both)),
    ):
        with pytest.raises(OptionError, match="number the classes of 'kind' differently, and a pr"):
            read()
