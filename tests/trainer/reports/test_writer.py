"""Event files: their framing, the bytes of scalars, and what TensorBoard finds in a point."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.util.tensor_util import make_ndarray

from pipeline.errors import OptionError
from trainer.reports.writer import (
    EventWriter,
    histogram_summary,
    image_summary,
    scalar_events,
    scalar_summary,
    text_summary,
)


def written(events_in, directory, write):
    """The one value of the one point that `write(writer)` wrote."""
    writer = EventWriter(str(directory))
    write(writer)
    writer.close()
    _, event = events_in(directory)
    (value,) = event.summary.value
    return event.step, value.tag, value.metadata.plugin_data.plugin_name, make_ndarray(value.tensor)


def test_a_file_begins_with_its_version_and_holds_what_was_written(events_in, tmp_path):
    writer = EventWriter(str(tmp_path), clock=lambda: 1234.5)
    writer.scalars(7, {"loss": 0.5, "accuracy": 0.25})
    writer.close()
    version, event = events_in(tmp_path)
    assert (version.file_version, version.wall_time) == ("brain.Event:2", 1234.5)
    assert {value.tag: value.simple_value for value in event.summary.value} == {
        "loss": 0.5,
        "accuracy": 0.25,
    }
    assert event.step == 7


def test_two_writers_of_one_second_have_a_file_each(tmp_path):
    for _ in range(2):
        EventWriter(str(tmp_path), clock=lambda: 5.0).close()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("scale", [1, 255], ids=["float", "uint8"])
def test_an_image_is_its_size_and_a_png_of_its_pixels(events_in, tmp_path, channels, scale):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 7, channels)).astype(np.uint8)
    given = pixels if scale == 255 else (pixels / np.float32(255)).astype(np.float32)
    found = written(events_in, tmp_path, lambda writer: writer.add(3, image_summary("two", given)))
    assert found[:3] == (3, "two", "images")
    width, height, *pngs = found[3].tolist()
    assert (width, height) == (b"7", b"5")
    decoded = np.stack(
        [np.asarray(Image.open(io.BytesIO(png))).reshape(5, 7, channels) for png in pngs]
    )
    np.testing.assert_array_equal(decoded, pixels)


def test_only_the_first_16_images_of_a_batch_are_written(events_in, tmp_path):
    batch = np.zeros((40, 2, 2, 3), np.uint8)
    *_, tensor = written(
        events_in, tmp_path, lambda writer: writer.add(1, image_summary("batch", batch))
    )
    assert len(tensor) == 2 + 16


@pytest.mark.parametrize(
    ("images", "text"),
    [
        (np.zeros((4, 4)), r"shape \[4, 4\]"),
        (np.zeros((4, 4, 2)), r"shape \[4, 4, 2\]"),
        (np.zeros((0, 4, 4, 3)), r"shape \[0, 4, 4, 3\]"),
        (np.full((4, 4, 3), 255, np.int32), "values in 255..255"),
        (np.linspace(-2, 2, 48).reshape(4, 4, 3), "values in -2..2"),
        (np.linspace(0, 2, 48).reshape(4, 4, 3), "values in 0..2"),
        (np.full((4, 4, 3), np.nan), "values in nan..nan"),
    ],
)
def test_an_array_that_is_not_an_image_is_refused_with_its_tag(images, text):
    with pytest.raises(OptionError, match=text):
        image_summary("x", images)


@pytest.mark.parametrize(
    ("values", "count", "low", "high"),
    [
        (np.linspace(-3, 7, 1001).reshape(7, 143), 1001, -3, 7),
        ([1.0, np.nan, 2.0, np.inf], 2, 1, 2),
        (np.full(6, 0.25, np.float32), 6, 0.25, 0.25),
        ([], 0, 0, 0),
    ],
)
def test_a_histogram_counts_every_finite_number_once(events_in, tmp_path, values, count, low, high):
    found = written(
        events_in, tmp_path, lambda writer: writer.add(4, histogram_summary("weights", values))
    )
    assert found[:3] == (4, "weights", "histograms")
    left, right, counts = found[3].T
    assert (len(counts), counts.sum(), left[0], right[-1]) == (30, count, low, high)
    numbers = np.ravel(values)
    for i in range(29):
        assert counts[i] == ((numbers >= left[i]) & (numbers < right[i])).sum()


def test_a_text_is_kept_as_it_is(events_in, tmp_path):
    found = written(
        events_in, tmp_path, lambda writer: writer.add(0, text_summary("config", "    {\n"))
    )
    assert (*found[:3], found[3].tolist()) == (0, "config", "text", [b"    {\n"])


names = st.lists(st.text(min_size=1, max_size=200), min_size=1, max_size=5, unique=True)


@settings(deadline=None)
@given(st.floats(1, 1e12), st.integers(1, 2**40), names, st.integers(1, 300), st.data())
def test_events_have_the_bytes_that_protobuf_gives_each(wall_time, first, names, count, data):
    few = [data.draw(st.floats(width=32)) for _ in range(7)]
    columns = {
        name: np.resize(np.float32(few[i:] + few[:i]), count) for i, name in enumerate(names)
    }
    rows = [{name: float(column[i]) for name, column in columns.items()} for i in range(count)]
    expected = [
        Event(wall_time=wall_time, step=first + i, summary=scalar_summary(row))
        for i, row in enumerate(rows)
    ]
    assert list(scalar_events(wall_time, first, columns)) == [
        event.SerializeToString() for event in expected
    ]


def test_step_0_is_read_back():
    (event,) = scalar_events(1.0, 0, {"loss": np.float32([0.5])})
    assert Event.FromString(event).step == 0
    assert Event.FromString(event).summary.value[0].simple_value == 0.5
