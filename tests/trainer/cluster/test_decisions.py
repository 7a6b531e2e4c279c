"""All hosts do the same before the same dispatch, whatever the order in which they get there."""

import signal
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.cluster import exchange
from trainer.cluster.exchange import Asked, Decision, Preemption, SharedDecisions
from trainer.cluster.host_watchdog import HostWatchdog
from trainer.cluster.store import LocalStore

SAVE, STOP = Decision(save=True), Decision(True, "enough")
DISPATCHES = 12


class NoSignal:
    def anywhere(self):
        return None


def polls_of(count, preemption=None):
    store = LocalStore()
    hosts = [HostWatchdog(10.0, store=store.view(i, count)) for i in range(count)]
    return [SharedDecisions(host.exchange, preemption or NoSignal()) for host in hosts]


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
            seen[turn].append(hosts[turn].poll(lambda turn=turn: wishes.get(made[turn], Decision())))
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
    asked = threading.Event()

    class OnHost3:
        def anywhere(self):
            return Decision(True, f"{name} on host 3 of 4", True, interrupted) if asked.is_set() else None

    hosts = polls_of(4, OnHost3())
    assert {host.poll() for host in hosts} == {Decision()}
    asked.set()
    for _ in range(2):
        assert {host.poll() for host in hosts} == {Decision()}
    assert {host.poll() for host in hosts} == {Decision(True, f"{name} on host 3 of 4", True, interrupted)}


def test_a_preemption_does_not_wait_for_a_save_by_the_clock():
    class Now:
        request = None

        def anywhere(self):
            return self.request

    now = Now()
    (alone,) = polls_of(1, now)
    assert alone.poll(lambda: SAVE) == SAVE
    now.request = Decision(True, "SIGTERM on host 0 of 1", True)
    assert alone.poll(lambda: pytest.fail("the clock is asked")).preempted


@pytest.mark.parametrize(
    ("heard", "asked"),
    [
        ([(signal.SIGTERM, 0.0)], Asked("SIGTERM")),
        ([(signal.SIGTERM, 0.0), (signal.SIGTERM, 0.9)], Asked("SIGTERM")),  # a launcher passed it on
        ([(signal.SIGTERM, 0.0), (signal.SIGTERM, 0.9), (signal.SIGTERM, 1.5)], Asked("SIGTERM", again=True)),
        ([(signal.SIGINT, 0.0), (signal.SIGTERM, 2.0)], Asked("SIGTERM", again=True)),
        ([(signal.SIGTERM, 0.0), (signal.SIGINT, 2.0)], Asked("SIGINT", again=True)),
    ],
)
def test_signals_more_than_a_second_apart_are_two(heard, asked, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(exchange, "_requested", threading.Event())
    monkeypatch.setattr(exchange.time, "monotonic", lambda: clock[0])
    preemption = Preemption(store=LocalStore())
    assert preemption.asked() == Asked()
    for number, clock[0] in heard:
        preemption._hear(number)
    assert preemption.asked() == asked
