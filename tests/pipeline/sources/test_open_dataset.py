"""What open_dataset cannot open, it says with what it could."""

from typing import Any, cast

import numpy as np
import pytest

from pipeline.datasets import open_dataset, train_dataset
from pipeline.errors import OptionError, ShardError
from pipeline.formats import TextLines


def test_values_that_are_not_datasets_are_refused_with_what_to_give(images):
    nothing: list[Any] = [None, np.zeros(3), 7, (name for name in [images])]
    for data in nothing:
        with pytest.raises(OptionError, match="is not a dataset. Give a directory, a file or a pattern; a dict of"):
            train_dataset(data, global_batch=1)
    with pytest.raises(OptionError, match=r"TextLines'> is not known\. Known: FixedLength\(\.\.\.\), TextLines\(\)"):
        open_dataset(images, format=cast(Any, TextLines))
    with pytest.raises(OptionError, match="split='': '' is not a split"):
        open_dataset(images, "")


def test_a_text_file_opened_as_tfrecords_is_an_error_that_suggests_a_format(tmp_path):
    (tmp_path / "lines.txt").write_text("one line of text\n" * 9)
    with pytest.raises(ShardError, match=r"lines\.txt, record 0 at byte 0") as caught:
        open_dataset(tmp_path / "lines.txt")
    assert caught.value.__notes__ == [
        "If these are not TFRecord files, give a format: TextLines() or FixedLength(...)."
    ]
