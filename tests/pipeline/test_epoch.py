"""The proof of an epoch in loops of other frameworks, of one to four processes."""

import multiprocessing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import infeed
from infeed import Epoch
from pipeline.datasets import eval_dataset
from pipeline.errors import EvaluationError, InputError, OptionError
from pipeline.grain import evaluation_batches, source
from pipeline.hosts import Hosts

X = np.arange(37, dtype=np.float32)


def checked(data, batches):
    """What Epochs of as many processes as there are lists of batches count together."""
    epochs = [Epoch(data) for _ in batches]
    for epoch, own in zip(epochs, batches, strict=True):
        for batch in own:
            epoch.add(batch)
    return epochs[0].check(sum(epoch.counts for epoch in epochs))


def of_numpy(count):
    hosts = [Hosts(index, count) for index in range(count)]
    return [eval_dataset({"x": X}, global_batch=12, hosts=each) for each in hosts]


def rows_of(batches):
    """A batch of one row for each row of the batches."""
    return [
        {key: batch[key][row : row + 1] for key in ("_mask", "_index", "_crc")}
        for batch in batches
        for row in range(len(batch["_mask"]))
    ]


@given(st.integers(1, 4), st.data())
def test_an_epoch_is_proven_if_and_only_if_no_record_is_lost_doubled_or_swapped(count, data):
    inputs = of_numpy(count)
    rows = [rows_of(each) for each in inputs]
    counted = checked(inputs[0], rows)
    assert counted == (37, 0, inputs[0].info.expected_crc, True)
    own = rows[data.draw(st.integers(0, count - 1))]
    counts = [number for number, row in enumerate(own) if row["_mask"] > 0]
    one = data.draw(st.sampled_from(counts))
    another = data.draw(st.sampled_from([number for number in counts if number != one]))
    match data.draw(st.sampled_from(["lost", "doubled", "swapped"])):
        case "lost":
            del own[one]
        case "doubled":
            own.append(own[one])
        case _:
            own[one] = own[another]
    with pytest.raises(EvaluationError, match="the loop counted"):
        checked(inputs[0], rows)


@pytest.mark.parametrize("on_error", ["mask", "raise"])
def test_a_bad_record_counts_only_where_the_input_may_leave_it_out(on_error):
    data = eval_dataset({"x": X}, global_batch=8, on_error=on_error)
    batches = list(data)
    batches[0]["_mask"] = np.float32([0, 1, 1, 1, 1, 1, 1, 1])
    if on_error == "mask":
        assert checked(data, [batches]) == (36, 1, data.info.expected_crc, False)
    else:
        with pytest.raises(EvaluationError, match="counted 36 records; the split has 37"):
            checked(data, [batches])


def test_keras_counts_what_it_evaluates():
    from pipeline import tf_data

    dataset = tf_data.eval_dataset({"x": X}, global_batch=8)
    epoch = Epoch(dataset)
    for batch in dataset:  # tensors, as test_on_batch takes them
        epoch.add(batch)
    assert epoch.check().records == 37


def test_grain_counts_what_its_workers_shuffled():
    grain = pytest.importorskip("grain")
    records = source({"x": X})
    shuffled = grain.MapDataset.source(records).shuffle(seed=1).batch(8)
    assert checked(records, [shuffled.to_iter_dataset()]).proven
    padded = evaluation_batches(grain.MapDataset.source(records), 8, records=records)
    assert checked(padded, [padded]).proven
    with pytest.raises(EvaluationError, match="counted 36 records; the split has 37"):
        checked(records, [grain.MapDataset.source(records)[1:].batch(8).to_iter_dataset()])


def counts_of(part):
    records = source({"x": X})
    epoch = Epoch(records)
    epoch.add(records.take(range(part, 37, 3)))
    return epoch.counts


def test_processes_add_up_what_they_counted():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        counts = pool.map(counts_of, range(3))
    epoch = Epoch(infeed.open_dataset({"x": X}))
    assert epoch.check(sum(counts)).records == 37
    assert epoch.check(np.asarray(sum(counts), np.int32)).records == 37  # as JAX would add them
    with pytest.raises(EvaluationError, match="counted 25 records; the split has 37"):
        epoch.check(counts[0] + counts[1])


def test_data_without_an_epoch_and_batches_without_proof_are_refused():
    training = infeed.train_dataset({"x": X}, global_batch=8)
    unbatched = infeed.eval_dataset({"x": X})
    says = "does not say which records an epoch has. Give"
    for data, problem in (
        (training, says),
        ([1, 2], says),
        (unbatched, f"<eval_dataset without a global_batch> {says}"),
    ):
        with pytest.raises(OptionError, match=problem):
            Epoch(data)
    epoch = Epoch(infeed.open_dataset({"x": X}))
    with pytest.raises(InputError, match="the batch has no _crc, but x. Keep _mask, _index and"):
        epoch.add({"x": X})
    with pytest.raises(InputError, match=r"_crc has the shape \[2\], _mask \[3\] and _index \[2\]"):
        epoch.add({"_crc": X[:2], "_mask": X[:3]})
    with pytest.raises(InputError, match=r"counts has the shape \[2, 3\]; it must be \[3\]"):
        epoch.check([epoch.counts] * 2)
    assert epoch.counts.tolist() == [0, 0, 0]
