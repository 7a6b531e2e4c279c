"""Label files: line n is the n-th class."""

import pytest

from converters.raw.class_names import names_digest, read_class_names
from pipeline.errors import LabelError


def test_each_line_is_a_class_whatever_the_line_ending(tmp_path):
    (tmp_path / "classes").write_bytes("\ufeffzebra\r\nKäse 🧀\r\nant\n\n\n".encode())
    assert read_class_names(str(tmp_path / "classes")) == (
        "zebra",
        "Käse 🧀",
        "ant",
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "line 1 is empty; it must name a class"),
        (b"a\n\nb\n", "line 2 is empty; it must name a class"),
        (b"a\nb\na\n", "a is listed twice"),
        (b"a\n\xff\n", "not UTF-8 text"),
    ],
)
def test_an_invalid_list_of_classes_is_refused(tmp_path, data, message):
    (tmp_path / "classes").write_bytes(data)
    with pytest.raises(LabelError, match=message):
        read_class_names(str(tmp_path / "classes"))


def test_the_digest_changes_with_names_and_order():
    assert len({names_digest(names) for names in ((), ("a",), ("a", "b"), ("b", "a"))}) == 4


def test_the_digest_of_class_names_never_changes():
    assert names_digest(("a", "b")) == "0c84cf75ee142f818515ab54bd107d86"
