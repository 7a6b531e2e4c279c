"""The events made from a template have the bytes of protobuf."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event

from trainer.events.reports import scalar_events, scalar_summary

names = st.lists(st.text(min_size=1, max_size=200), min_size=1, max_size=5, unique=True)


@given(st.floats(1, 1e12), st.integers(1, 2**40), names, st.integers(1, 300), st.data())
def test_events_have_the_bytes_that_protobuf_gives_each(wall_time, first, names, count, data):
    few = [data.draw(st.floats(width=32)) for _ in range(7)]
    columns = {name: np.resize(np.float32(few[i:] + few[:i]), count) for i, name in enumerate(names)}
    rows = [{name: float(column[i]) for name, column in columns.items()} for i in range(count)]
    expected = [Event(wall_time=wall_time, step=first + i, summary=scalar_summary(row)) for i, row in enumerate(rows)]
    assert list(scalar_events(wall_time, first, columns)) == [event.SerializeToString() for event in expected]


def test_step_0_is_read_back():
    (event,) = scalar_events(1.0, 0, {"loss": np.float32([0.5])})
    assert Event.FromString(event).step == 0
    assert Event.FromString(event).summary.value[0].simple_value == 0.5
