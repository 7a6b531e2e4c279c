"""Names, shapes and patterns: what is loaded, and what each other array's line says."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import CheckpointError, OptionError
from trainer.checkpointing.warm_start import WarmStart
from trainer.checkpointing.warm_start_finding import Array, check_rows, described_rows, match

MODEL = {
    "body/kernel": Array((4, 3), "float32"),
    "body/bias": Array((3,), "float32"),
    "count": Array((), "int32"),
    "head/kernel": Array((3, 2), "float32"),
}
SAVED = {
    "body/kernel": Array((4, 3), "bfloat16"),
    "old": Array((2,), "float32"),
    "count": Array((), "float32"),
    "head/kernel": Array((3, 5), "float32"),
}


def warm(**values):
    return WarmStart(init_from="there", **values)


def lines(**values):
    return described_rows(match(MODEL, SAVED, warm(**values)))


def test_each_kind_of_mismatch_has_its_line():
    assert lines(init_exclude=("old",)) == [
        "1 loaded, 1 missing, 2 mismatched, 1 excluded",
        "missing: body/bias: float32 [3]",
        "mismatched: count: float32 [] in the checkpoint, int32 [] in the model",
        "mismatched: head/kernel: float32 [3, 5] in the checkpoint, float32 [3, 2] in the model",
        "excluded: old",
    ]
    renamed = lines(init_rename=("old=body/bias", "head/*=new/*"), init_include=("body/*", "new/*"))
    shapes = "float32 [2] in the checkpoint, float32 [3] in the model"
    assert f"mismatched: body/bias (in the checkpoint: old): {shapes}" in renamed
    assert "unexpected: new/kernel (in the checkpoint: head/kernel): float32 [3, 5]" in renamed


def test_a_long_list_of_mismatches_is_truncated():
    model = {f"a{n}": Array((), "float32") for n in range(50)}
    text = described_rows(match(model, {"a0": Array((), "float32")}, warm()))
    assert text[0] == "1 loaded, 49 missing"
    assert text[-2:] == ["missing: a30: float32 []", "and 19 more"]


def test_disallowed_mismatches_are_an_error_that_names_the_first_arrays_and_remedy():
    rows = match(MODEL, SAVED, warm())
    with pytest.raises(
        CheckpointError, match=r"not in the checkpoint \(body/bias.*not in the model \(old"
    ) as strict:
        check_rows("there", rows, warm(init_mismatch="skip"), "Rename arrays")
    assert "Rename arrays, or leave arrays out with init_exclude" in str(strict.value)
    assert "kind of number" not in str(strict.value)
    with pytest.raises(
        CheckpointError, match=r"2 arrays of another shape or kind of number \(count: "
    ):
        check_rows("there", rows, warm(init_strict=False), "Rename arrays")
    check_rows("there", rows, warm(init_strict=False, init_mismatch="skip"), "")


def test_a_checkpoint_without_any_array_for_the_model_is_an_error_even_if_not_strict():
    rows = match(MODEL, {"w": Array((), "float32")}, warm())
    with pytest.raises(CheckpointError, match="there has no array for this model. Rename arrays."):
        check_rows("there", rows, warm(init_strict=False), "Rename arrays")


def test_each_star_of_a_rename_keeps_its_match_and_the_first_pattern_wins():
    saved = {"encoder.layer.11.dense.weight": Array((2,), "float32"), "x/y": Array((), "float32")}
    rename = ("encoder.layer.*.*.weight=layers/*/*/kernel", "*=other/*")
    named = {row.name: row.theirs for row in match({}, saved, warm(init_rename=rename))}
    assert named == {"layers/11/dense/kernel": "encoder.layer.11.dense.weight", "other/x/y": "x/y"}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"init_exclude": ("heed/*",)}, r"'heed/\*' matches no array"),
        ({"init_rename": ("body.*=*",)}, r"'body.\*' of init_rename"),
        ({"init_rename": ("old=count",)}, "both 'old' and 'count' would be 'count'"),
    ],
)
def test_patterns_that_match_nothing_and_names_given_twice_are_errors(values, text):
    with pytest.raises(OptionError, match=text):
        match(MODEL, SAVED, warm(**values))


def test_wrong_settings_are_errors():
    with pytest.raises(OptionError, match="init_mismatch='pad' is not one of error, skip"):
        warm(init_mismatch="pad")
    for rename in ("a", "a=", "=b", "a=*"):
        with pytest.raises(OptionError, match=r"must be a pattern and a name"):
            warm(init_rename=(rename,))


def test_kernels_of_torch_match_with_output_channels_last():
    model = {"conv": Array((3, 3, 2, 8), "float32"), "bias": Array((8,), "float32")}
    saved = {"conv": Array((8, 2, 3, 3), "float32"), "bias": Array((8,), "float32")}
    assert described_rows(match(model, saved, warm(init_torch=("*",)))) == ["2 loaded"]
    assert described_rows(match(model, saved, warm()))[0] == "1 mismatched, 1 loaded"


ARRAYS = st.dictionaries(
    st.sampled_from("abcdef"),
    st.builds(Array, st.sampled_from([(), (1,), (2, 1)]), st.sampled_from(["float32", "int32"])),
)


@given(ARRAYS, ARRAYS, st.frozensets(st.sampled_from("abcdef")))
@settings(max_examples=30)
def test_every_array_has_one_row_and_only_equal_shapes_are_loaded(model, saved, excluded):
    names = tuple(excluded & (model.keys() | saved.keys()))
    config = warm(init_exclude=names) if model or saved else warm(init_include=())
    rows = match(model, saved, config)
    assert sorted(row.name for row in rows) == sorted(model.keys() | saved.keys())
    for row in rows:
        ours, theirs = model.get(row.name), saved.get(row.name)
        if row.status == "loaded":
            assert ours == theirs
        assert (row.status == "excluded") == (row.name in names)
        assert (row.theirs is None) == (theirs is None)
