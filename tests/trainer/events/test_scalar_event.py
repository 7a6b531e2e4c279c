"""The events made by hand have the bytes of protobuf."""

from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event

from trainer.events.scalar_event import scalar_event
from trainer.events.summaries import scalar_summary

values = st.dictionaries(st.text(min_size=1, max_size=200), st.floats(), min_size=1, max_size=5)


@given(st.floats(1, 1e12), st.integers(1, 2**62), values)
def test_an_event_has_the_bytes_that_protobuf_gives_it(wall_time, step, values):
    expected = Event(wall_time=wall_time, step=step, summary=scalar_summary(values))
    assert scalar_event(wall_time, step, values) == expected.SerializeToString()


def test_step_0_and_a_step_without_numbers_are_read_as_they_are():
    assert Event.FromString(scalar_event(1.0, 0, {"loss": 0.5})).step == 0
    assert not Event.FromString(scalar_event(1.0, 1, {})).summary.value
