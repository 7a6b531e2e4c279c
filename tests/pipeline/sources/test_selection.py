import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import EmptySplitError, OptionError
from pipeline.sources.open_dataset import parse_selections


def selected(text: str, num_records: int) -> list[tuple[str, range]]:
    return [(selection.split, selection.of(num_records)) for selection in parse_selections(text)]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("train", [("train", range(1000))]),
        ("train[:90%]", [("train", range(900))]),
        ("train[90%:]", [("train", range(900, 1000))]),
        ("train[-10%:]", [("train", range(900, 1000))]),
        ("train[10:-10]", [("train", range(10, 990))]),
        ("train[:0.5%]", None),
        ("train[ 5 : 7 ] + validation", [("train", range(5, 7)), ("validation", range(1000))]),
        ("[:7]", [("", range(7))]),
        ("train[:]", [("train", range(1000))]),
    ],
)
def test_a_split_expression_selects_records(text, parts):
    if parts is None:
        with pytest.raises(OptionError, match=r"'0\.5%' is not a position in a split"):
            selected(text, 1000)
    else:
        assert selected(text, 1000) == parts


@given(n=st.integers(100, 10**7), percent=st.integers(1, 99))
def test_two_parts_cut_at_one_percentage_make_up_the_split(n, percent):
    first, second = (
        selection.of(n) for selection in parse_selections(f"a[:{percent}%]+a[{percent}%:]")
    )
    assert (first.start, first.stop, second.stop) == (0, second.start, n)


@given(
    n=st.integers(1, 300), a=st.integers(-100, 100), b=st.integers(-100, 100), percent=st.booleans()
)
def test_a_split_expression_selects_the_same_records_as_in_tfds(n, a, b, percent):
    from tensorflow_datasets.core import splits

    sign = "%" if percent else ""
    text = f"train[{a}{sign}:{b}{sign}]"
    info = {"train": splits.SplitInfo(name="train", shard_lengths=[n], num_bytes=0)}
    try:
        ours = parse_selections(text)[0].of(n)
    except (OptionError, EmptySplitError):
        ours = range(0)
    try:
        (theirs,) = splits.ReadInstruction.from_spec(text).to_absolute(info)
        theirs = range(theirs.from_ or 0, n if theirs.to is None else theirs.to)
    except (ValueError, AssertionError):
        theirs = range(0)
    # TFDS takes the last 1 % of 10 records for all of them: a negative share that rounds to none counts as no bound.
    if not any(percent and side < 0 and round(side * n / 100) == 0 for side in (a, b)):
        assert list(ours) == list(theirs)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train[:101%]", r"'101%' is not a position in a split\. Give an integer, or -100% to 100%"),
        ("train[5]", r"'train\[5\]' is not a split or a part of one\. Examples: 'train', 'train\[:90%\]'"),
        ("train+", r"split='train\+': '' is not a split"),
        ("train[:1][:2]", "is not a split or a part of one"),
        ("train[-1001:]", r"'train\[-1001:\]' is out of range: the split has 1000 records"),
        ("train[:2000]", r"'train\[:2000\]' is out of range: the split has 1000 records"),
    ],
)  # fmt: skip
def test_an_invalid_split_expression_is_refused_with_examples(text, message):
    with pytest.raises(OptionError, match=message):
        selected(text, 1000)


def test_a_selection_without_records_is_refused():
    with pytest.raises(
        EmptySplitError, match=r"'train\[50:40\]' selects none of 1000 records: 50 to 40"
    ):
        selected("train[50:40]", 1000)
