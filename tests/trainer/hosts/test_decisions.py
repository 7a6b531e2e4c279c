"""All hosts do the same before the same dispatch, whatever the order in which they get there."""

import pytest
from host_stores import exchanges_of
from hypothesis import given
from hypothesis import strategies as st

from trainer.hosts.exchange import Decision, SharedDecisions

SAVE, STOP = Decision(save=True), Decision(True, "enough")
DISPATCHES = 12


def polls_of(count, asked=lambda: None):
    return [SharedDecisions(exchange, asked) for exchange in exchanges_of(count)]


def allowed(made, host):
    """Whether the host may poll again: before its poll n + 2 it has read what dispatch n gave, a sum over all hosts."""
    return made[host] < 2 or min(made) > made[host] - 2


@given(
    count=st.integers(1, 4),
    wishes=st.dictionaries(st.integers(0, DISPATCHES), st.sampled_from([SAVE, STOP]), max_size=4),
    schedule=st.lists(st.integers(0, 3), max_size=200),
)
def test_every_host_does_what_host_0_decided_at_the_same_poll(count, wishes, schedule):
    hosts, made = polls_of(count), [0] * count
    seen = [[] for _ in hosts]
    # After the random part all go on in turns, so that every host comes to its end.
    for turn in [*(turn % count for turn in schedule), *list(range(count)) * 2 * DISPATCHES]:
        if made[turn] < DISPATCHES and allowed(made, turn):
            seen[turn].append(
                hosts[turn].poll(lambda turn=turn: wishes.get(made[turn], Decision()))
            )
            made[turn] += 1
    assert made == [DISPATCHES] * count
    assert all(each == seen[0] for each in seen)
    margin = 2 if count > 1 else 0
    if wishes and min(wishes) + margin < DISPATCHES:
        assert seen[0][min(wishes) + margin] == wishes[min(wishes)]


def test_a_repeated_request_for_a_save_is_decided_once_until_done():
    (host, other) = polls_of(2)
    decisions = [(host.poll(lambda: SAVE), other.poll()) for _ in range(4)]
    assert decisions == [(Decision(),) * 2, (Decision(),) * 2, (SAVE, SAVE), (Decision(),) * 2]


@pytest.mark.parametrize(("name", "interrupted"), [("SIGTERM", False), ("SIGINT", True)])
def test_a_preemption_of_any_host_stops_all_at_the_same_poll(name, interrupted):
    asked = []
    hosts = polls_of(4, lambda: asked[0] if asked else None)
    assert {host.poll() for host in hosts} == {Decision()}
    asked.append(Decision(True, f"{name} on host 3 of 4", True, interrupted))
    for _ in range(2):
        assert {host.poll() for host in hosts} == {Decision()}
    assert {host.poll() for host in hosts} == {asked[0]}


def test_a_preemption_does_not_wait_for_a_save_by_the_clock():
    asked = []
    (alone,) = polls_of(1, lambda: asked[0] if asked else None)
    assert alone.poll(lambda: SAVE) == SAVE
    asked.append(Decision(True, "SIGTERM on host 0 of 1", True))
    assert alone.poll(lambda: pytest.fail("the clock is asked")).preempted
