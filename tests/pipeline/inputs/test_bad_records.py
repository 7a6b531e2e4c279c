"""Records that are damaged or cannot be decoded: what each `on_error` makes of them, on any hosts, after any resume."""

import shutil

import numpy as np
import pytest
from bad_pictures import BAD, OPS, N
from damage import flip_payload_bits
from host_batches import assert_same, joined, taken

from pipeline.datasets import eval_dataset, mixture, open_dataset, train_dataset
from pipeline.errors import BadRecordsError, CorruptRecordError, OptionError, SchemaError
from pipeline.hosts import Hosts
from pipeline.tf_cpu import tf
from pipeline.tf_data import dataset_of

STAND_INS = {3: 5, 4: 5, 10: 12, 11: 12, 16: 17, 23: 0}


def rows(batches) -> dict[str, np.ndarray]:
    return {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}


def training(directory, count=1, index=0, **options):
    common = {
        "global_batch": 8,
        "hosts": Hosts(index, count),
        "ops": OPS,
        "keys": ("image", "label"),
        "seed": 5,
    }
    return train_dataset(directory, "train", **(common | options))


def global_batches(directory, count, steps, **options) -> list[dict[str, np.ndarray]]:
    hosts = [taken(training(directory, count, i, **options), count=steps) for i in range(count)]
    return joined(hosts)


@pytest.mark.parametrize(("count", "global_batch"), [(1, 1), (2, 8), (4, 40)])
def test_masked_rows_keep_record_number_and_crc_and_contain_pad_values(
    pictures, count, global_batch
):
    pads = {"image": 7, "label": -5}
    options = {"global_batch": global_batch, "ops": OPS, "pad_values": pads}
    for index in range(count):
        hosts = Hosts(index, count)
        intact = eval_dataset(pictures[0], hosts=hosts, **options)
        source = eval_dataset(pictures[1], hosts=hosts, on_error="mask", **options)
        promised = open_dataset(pictures[1], "validation").info.crcs
        batches = taken(source)
        assert_same(batches, list(dataset_of(source).as_numpy_iterator()))
        whole, got = rows(taken(intact)), rows(batches)
        bad = np.isin(got["_index"], BAD)
        np.testing.assert_array_equal(got["_index"], whole["_index"])
        np.testing.assert_array_equal(got["_mask"], whole["_mask"] * ~bad)
        assert (got["_crc"][bad] == promised[got["_index"][bad]]).all()
        for key in ("image", "label"):
            assert (got[key][bad] == pads[key]).all()
            np.testing.assert_array_equal(got[key][~bad], whole[key][~bad])
        assert [b.record_id for b in source.quarantine] == sorted(got["_index"][bad].tolist())


def test_the_crcs_of_a_masked_evaluation_add_up_to_what_is_expected(pictures):
    source = eval_dataset(pictures[1], global_batch=5, ops=OPS, on_error="mask")
    got = rows(taken(source))
    assert int(got["_crc"].sum(dtype=np.uint64)) % 2**32 == source.info.expected_crc
    assert (int(got["_mask"].sum()), int((got["_index"] >= 0).sum())) == (N - len(BAD), N)


def test_a_skipped_record_is_replaced_by_the_next_good_one_of_its_epoch(pictures):
    steps = 2 * N // 8  # two epochs
    intact, skipped = (
        taken(training(directory, on_error="skip"), count=steps) for directory in pictures
    )
    for epoch in (slice(0, steps // 2), slice(steps // 2, steps)):
        whole, got = rows(intact[epoch]), rows(skipped[epoch])
        assert got["_index"].tolist() == [STAND_INS.get(i, i) for i in whole["_index"].tolist()]
        assert got["_mask"].tolist() == [1.0] * N
        place = np.argsort(whole["_index"])[got["_index"]]
        for key in ("image", "label", "_crc"):  # the image with its random shift, too
            np.testing.assert_array_equal(got[key], whole[key][place])


@pytest.mark.parametrize("on_error", ["skip", "mask"])
def test_training_past_bad_records_does_not_depend_on_the_hosts(pictures, on_error):
    options = {"on_error": on_error, "block_records": 4, "window_records": 3}
    one = global_batches(pictures[1], 1, 7, **options)
    assert_same(global_batches(pictures[1], 4, 7, **options), one)


@pytest.mark.parametrize(("steps", "on_error"), [(1, "mask"), (4, "skip")])
def test_a_run_resumed_before_the_first_bad_record_has_the_batches_of_the_straight_run(
    pictures, steps, on_error
):
    straight = training(pictures[1], on_error=on_error)
    saved = straight.state(straight.advance(straight.start, steps))
    again = training(pictures[1], on_error=on_error)
    assert_same(taken(again, again.restore(saved), 4), taken(straight, count=steps + 4)[steps:])


def test_a_run_that_ended_on_a_bad_record_resumes_with_skip(pictures):
    ended = training(pictures[1])
    assert training(pictures[1], on_error="skip").restore(ended.state(ended.start)) == ended.start


def test_training_with_mask_keeps_the_other_rows_as_they_are(pictures):
    intact, masked = (
        rows(taken(training(directory, on_error="mask"), count=3)) for directory in pictures
    )
    good = ~np.isin(intact["_index"], BAD)
    np.testing.assert_array_equal(masked["_mask"], good.astype(np.float32))
    np.testing.assert_array_equal(masked["_index"], intact["_index"])
    np.testing.assert_array_equal(masked["image"][good], intact["image"][good])
    assert not masked["image"][~good].any()
    np.testing.assert_array_equal(masked["_seed"], intact["_seed"] * good[:, None])


@pytest.fixture
def numbers_with_a_bad_end(numbers_of, tmp_path):
    """8 tiny records of which the last two are damaged."""
    directory = str(shutil.copytree(numbers_of(5, 0, 3), tmp_path / "numbers"))
    flip_payload_bits(directory, "train", 6, 7)
    return directory


def test_a_skipped_record_is_replaced_by_one_of_the_same_source(numbers_with_a_bad_end, numbers_of):
    def seen(data, **options):
        source = train_dataset(data, global_batch=4, epochs="span", on_error="skip", **options)
        got = rows(taken(source, count=40))
        assert (got["_index"] % 8 == got["number"]).all()
        return set(got["_index"].tolist())

    bad, intact, other = map(
        open_dataset, (numbers_with_a_bad_end, numbers_of(5, 0, 3), numbers_of(8))
    )
    assert seen(mixture([bad, other], [1, 1])) == {*range(6), *range(8, 16)}
    sources = (
        train_dataset(mixture([one, other], [3, 1]), global_batch=4, on_error="skip")
        for one in (bad, intact)
    )
    shares = [rows(taken(source, count=64))["_index"] < 8 for source in sources]
    assert shares[0].tolist() == shares[1].tolist()  # row by row: no weight shifts
    assert seen(mixture([bad, other], [1, 1]), cache="ram") == {*range(6), *range(8, 16)}
    assert seen(bad, limit=7) == set(range(6))


def test_bad_records_at_the_end_of_a_source_are_replaced_by_its_first(
    numbers_with_a_bad_end, numbers_of
):
    source = train_dataset(
        [numbers_with_a_bad_end, numbers_of(5, 0, 3)], global_batch=16, on_error="skip"
    )
    assert sorted(taken(source, count=1)[0]["_index"].tolist()) == sorted(
        [*range(6), 0, 0, *range(8, 16)]
    )


def test_a_source_with_only_bad_records_ends_the_training(numbers_of, tmp_path):
    directory = str(shutil.copytree(numbers_of(3), tmp_path / "numbers"))
    flip_payload_bits(directory, "train", 0, 1, 2)
    source = train_dataset(directory, global_batch=1, on_error="skip")
    reason = r"record \d .* is bad, and no other record .* all records of its source are bad"
    with pytest.raises(BadRecordsError, match=reason):
        next(source.batches())


def test_with_raise_the_first_bad_record_ends_the_iteration_and_is_named(pictures):
    place = r"validation-0000{}-of-00003, record {} at byte \d+"
    for limit, kind, text in (
        (9, SchemaError, place.format(0, 3) + r" \(record 3 of 'validation'\): "),
        (None, CorruptRecordError, place.format(2, 1) + ": .*crc"),
    ):
        source = eval_dataset(pictures[1], global_batch=N, ops=OPS, limit=limit)
        batches = source.batches()
        with pytest.raises(kind, match=text):
            next(batches)
        assert next(batches, None) is None
        with pytest.raises(tf.errors.OpError, match=text):
            list(dataset_of(source))


def test_more_bad_records_than_the_budget_are_an_error_that_lists_the_first(pictures):
    options = {"global_batch": 4, "ops": OPS, "on_error": "mask"}
    assert len(taken(eval_dataset(pictures[1], max_bad_records=6, **options))) == 6
    text = (
        r"\d records are bad on this host; max_bad_records=1\. The first are:\n  .*record 3 .*\n"
        r"  .*record 4 (.*\n)+So many are unlikely by chance: .* raise max_bad_records"
    )
    with pytest.raises(BadRecordsError, match=text):
        taken(eval_dataset(pictures[1], max_bad_records=1, **options))


@pytest.mark.parametrize(
    ("recipe", "options", "text"),
    [
        (eval_dataset, {"on_error": "skip"}, r"on_error='skip' would count another record twice .* 'mask' leaves"),
        (train_dataset, {"on_error": "ignore"}, r"on_error='ignore' is not one of raise, skip, mask"),
        (eval_dataset, {"on_error": "mask", "max_bad_records": -1}, "max_bad_records=-1 must be at least 0"),
        (train_dataset, {"quarantine_file": "bad.jsonl"}, r"quarantine_file='bad.jsonl' lists what .*='mask'"),
        (train_dataset, {"on_error": "skip", "quarantine_file": "az://b/f"}, "az:// is not supported"),
    ],
)  # fmt: skip
def test_contradictory_bad_record_options_are_refused(pictures, recipe, options, text):
    with pytest.raises(OptionError, match=text):
        recipe(pictures[0], global_batch=4, **options)


@pytest.mark.parametrize(
    ("mixed", "options", "golden"),
    [
        (
            False,
            {"global_batch": 8, "streams": 8},
            [
                (10, 12, 1696358104, 1181650067),
                (4, 5, 1769529271, 3467679393),
                (3, 5, 1769529271, 3467679393),
            ],
        ),
        (
            False,
            {"global_batch": 10, "streams": 10, "epochs": "span"},
            [
                (10, 12, 1696358104, 1181650067),
                (10, 12, 3148999381, 1188092102),
                (4, 5, 1769529271, 3467679393),
            ],
        ),
        (
            True,
            {"global_batch": 8},
            [
                (35, 36, 961583009, 760872345),
                (27, 29, 1548520504, 893774228),
                (34, 36, 953832198, 4146694360),
            ],
        ),
    ],
    ids=["drop", "span", "mixture"],
)
def test_the_seeds_of_replacement_records_never_change(pictures, mixed, options, golden):
    # Golden: (bad record, its stand-in, _seed) of the last three in 12 batches: no source is in its first epoch.
    sources = (
        mixture([open_dataset(d), open_dataset(d, "validation")], [1, 2]) if mixed else d
        for d in pictures
    )
    common = {"keys": ("label",), "seed": 5, "on_error": "skip", "ops": OPS}
    wanted, got = (
        rows(taken(train_dataset(source, **common, **options), count=12)) for source in sources
    )
    stood_in = np.flatnonzero(wanted["_index"] != got["_index"])[-3:]
    assert [
        (int(wanted["_index"][i]), int(got["_index"][i]), *got["_seed"][i].tolist())
        for i in stood_in
    ] == golden
