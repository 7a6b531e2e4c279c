"""The events made by hand have the bytes of protobuf."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event

from trainer.events.scalar_event import scalar_event, scalar_events
from trainer.events.summaries import scalar_summary

values = st.dictionaries(st.text(min_size=1, max_size=200), st.floats(), min_size=1, max_size=5)


@given(st.floats(1, 1e12), st.integers(1, 2**62), values)
def test_an_event_has_the_bytes_that_protobuf_gives_it(wall_time, step, values):
    expected = Event(wall_time=wall_time, step=step, summary=scalar_summary(values))
    assert scalar_event(wall_time, step, values) == expected.SerializeToString()


names = st.lists(st.text(min_size=1, max_size=200), min_size=1, max_size=5, unique=True)


@given(st.floats(1, 1e12), st.integers(0, 2**40), names, st.integers(1, 300), st.data())
def test_the_events_of_many_steps_are_those_of_each(wall_time, first, names, count, data):
    few = [data.draw(st.floats(width=32)) for _ in range(7)]
    columns = {name: np.resize(np.float32(few[i:] + few[:i]), count) for i, name in enumerate(names)}
    rows = [{name: float(column[i]) for name, column in columns.items()} for i in range(count)]
    expected = [scalar_event(wall_time, step, row) for step, row in enumerate(rows, first)]
    assert list(scalar_events(wall_time, first, columns)) == expected


def test_step_0_and_a_step_without_numbers_are_read_as_they_are():
    assert Event.FromString(scalar_event(1.0, 0, {"loss": 0.5})).step == 0
    assert not Event.FromString(scalar_event(1.0, 1, {})).summary.value
