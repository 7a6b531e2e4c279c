"""The traceback of an error in an op fits on one screen, with the line of the user's op and that of the user's loop."""

import traceback

import numpy as np
import pytest

from pipeline.datasets import train_dataset
from pipeline.errors import InfeedError
from pipeline.ops import DecodeJpeg
from pipeline.spec import ArraySpec

SCREEN = 24


class Fails:
    reads = ("number",)

    def output_spec(self, specs):
        return {"made": ArraySpec((), np.dtype(np.int32))}

    def __call__(self, features, rng):
        return {"made": self.reads[7]}  # the user's line


def shown(data, op):
    batches = train_dataset(data, global_batch=8, ops=[op]).batches()
    with pytest.raises(InfeedError) as caught:
        next(batches)  # the user's loop
    return "".join(traceback.format_exception(caught.value))


def test_an_error_in_a_users_op_shows_the_users_line_first_and_the_record_last():
    text = shown({"number": np.arange(64)}, Fails())
    assert len(text.splitlines()) <= SCREEN
    assert text.index("# the user's line") < text.index("# the user's loop") < text.index("row ")
    assert "IndexError: tuple index out of range" in text.splitlines()[-1]


def test_an_error_in_our_own_op_shows_the_users_loop_only(digits):
    text = shown(str(digits[1]), DecodeJpeg("image/encoded", into="image", shape=(28, 28, 1)))
    assert len(text.splitlines()) <= SCREEN - 8
    assert "# the user's loop" in text
    assert "image_ops.py" not in text
