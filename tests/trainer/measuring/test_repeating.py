"""Times of repeated calls, on a clock that only the calls move."""

import pytest

from trainer.measuring.repeating import Deadline, Times, repeat


class FakeClock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def call(clock):
    """call(3, 1, 2): a call that takes 3 seconds, then 1, then 2, then 3 again."""

    def taking(*seconds):
        done = []

        def work():
            clock.now += seconds[len(done) % len(seconds)]
            done.append(1)

        return work

    return taking


def test_the_median_the_shortest_and_the_longest_of_seven_calls(clock, call):
    times = repeat(call(5, 1, 4, 2, 9, 3, 3), Deadline.after(60, clock))
    assert times == Times(median=3, shortest=1, longest=9, repetitions=7)
    assert Times.of([4.0, 1.0]) == Times(2.5, 1.0, 4.0, 2)


@pytest.mark.parametrize(("seconds", "repetitions"), [(0, 3), (3, 3), (4, 4), (5.5, 5), (100, 7)])
def test_calls_are_repeated_three_to_seven_times_while_the_next_one_would_end_before_the_deadline(
    clock, call, seconds, repetitions
):
    assert repeat(call(1), Deadline.after(seconds, clock)).repetitions == repetitions


def test_the_time_to_prepare_a_call_is_not_part_of_it(clock, call):
    prepared = []

    def prepare():
        clock.now += 10
        prepared.append(clock.now)

    times = repeat(call(2), Deadline.after(1000, clock), prepare)
    assert (times, len(prepared)) == (Times(2, 2, 2, 7), 7)


def test_measurements_share_equally_what_is_left(clock):
    deadline = Deadline.after(12, clock)
    assert deadline.share(4).seconds_left == 3
    clock.now += 6
    assert deadline.share(3).seconds_left == 2
    clock.now += 7
    assert (deadline.seconds_left, deadline.share(2).seconds_left) == (0, 0)
