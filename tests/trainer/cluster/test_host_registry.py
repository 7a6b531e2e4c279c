"""What hosts tell each other, with threads for hosts over one store; real processes are in tests/e2e."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline.errors import HostError
from trainer.cluster.host_registry import Failure, HostRegistry, SilentHosts, poll
from trainer.cluster.store import LocalStore, StoreError


def rolls(count, timeout_seconds=5.0):
    store = LocalStore()
    return [HostRegistry(store.view(i, count), timeout_seconds) for i in range(count)]


def test_the_first_failure_is_the_one_that_counts():
    first, second, third = rolls(3)
    assert first.failure() is None
    assert second.report("its disk is full") == Failure(1, "its disk is full")
    assert third.report("a consequence") == Failure(1, "its disk is full")
    assert str(first.failure().error(3)) == "host 1 of 3 failed: its disk is full"


def beating(rolls, number):
    for registry in rolls:
        registry.store.put(f"beat/{registry.store.index}", str(number))


@pytest.mark.parametrize("silent", [0, 1])
def test_every_host_reports_exactly_the_host_that_stopped_its_heartbeat(silent):
    hosts = rolls(4, timeout_seconds=2.0)
    hosts[3].left("done")
    alive = [hosts[1 - silent], hosts[2]]
    beating(hosts, 0)
    stop = time.monotonic() + 60
    for number in range(1, 10_000):
        for registry in alive:
            registry.look()
        if (failure := hosts[2].failure()) or time.monotonic() > stop:
            break
        beating(alive, number)
        time.sleep(0.05)
    assert failure.host == silent
    assert "sent no heartbeat for 1 s" in failure.text
    assert "resumes from the newest checkpoint" in failure.text


def test_a_host_that_was_suspended_does_not_report_others_as_dead():
    first, second = rolls(2, timeout_seconds=0.4)
    beating([second], 0)
    first.look()
    time.sleep(1.0)
    first.look()  # before the other, suspended with it, could give a sign
    assert first.failure() is None


def test_a_host_that_has_not_joined_is_late_but_not_dead():
    first, _ = rolls(2, timeout_seconds=0.02)
    for _ in range(3):
        time.sleep(0.02)
        first.look()
    assert first.failure() is None


def test_the_others_end_separately_if_host_0_is_silent():
    hosts = rolls(3, timeout_seconds=60.0)
    beating(hosts, 0)
    for registry in hosts[1:]:
        registry._silent_hosts = SilentHosts(registry.store, 0.5)
        registry.left("raised")
    begun = time.monotonic()
    assert in_threads([registry.ended_together for registry in hosts[1:]]) == [False, False]
    assert time.monotonic() - begun < 30
    assert hosts[1].failure().host == 0


def in_threads(calls):
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def test_hosts_that_all_raised_ended_together_and_the_failure_is_forgotten():
    hosts = rolls(3)
    hosts[2].report("a NaN, on every host")
    for registry in hosts:
        registry.left("raised")
    assert in_threads([registry.ended_together for registry in hosts]) == [True] * 3
    assert hosts[1].failure() is None


@pytest.mark.parametrize("how", ["killed", "done"])
def test_hosts_end_separately_unless_all_of_them_raised(how):
    hosts = rolls(3)
    hosts[0].report("a failure of one")
    for registry, left in zip(hosts, ["raised", how, "raised"], strict=True):
        registry.left(left)
    assert in_threads([registry.ended_together for registry in hosts]) == [False] * 3
    assert hosts[1].failure() is not None


def test_a_host_that_never_leaves_is_waited_for_no_longer_than_the_time_out():
    first, second, _ = rolls(3, timeout_seconds=0.3)
    begun = time.monotonic()
    for registry in (first, second):
        registry.left("raised")
    assert in_threads([first.ended_together, second.ended_together]) == [False, False]
    assert 0.3 <= time.monotonic() - begun < 3


def test_each_call_has_its_own_keys():
    store = LocalStore()
    first, again = (HostRegistry(store.view(1, 2), 5.0) for _ in range(2))
    other = HostRegistry(store.view(0, 2), 5.0)
    assert first.key("x") == other.key("x") != again.key("x")


class GoneStore(LocalStore):
    """The store of a run whose process 0 is dead."""

    def _gone(self, *_):
        raise StoreError("UNAVAILABLE: Socket closed\nmore of it")

    def __init__(self):
        super().__init__()
        self.index, self.count = 1, 2

    def die(self):
        self.put = self.put_first = self.get = self.by_host = self.delete = self.reach = self._gone


def test_an_unreachable_coordination_service_is_reported_as_a_failure_of_host_0():
    store = GoneStore()
    registry = HostRegistry(store, 0.1)
    store.die()
    text = r"host 0 of 2 failed: the coordination service .* does not answer \(UNAVAILABLE: Socket closed\)\."
    with pytest.raises(HostError, match=text):
        raise registry.failure().error(2)
    assert registry.report("mine").host == 0
    for nothing_raised in (registry.look, lambda: registry.left("done"), registry.depart):
        nothing_raised()
    with pytest.raises(HostError, match=text):
        HostRegistry(store, 0.1)


def test_a_store_that_gives_no_answer_is_asked_once_and_never_again():
    store = GoneStore()
    registry = HostRegistry(store, 60.0)
    store.reach = store._gone
    assert registry.reach().host == 0
    store.put = store.put_first = store.get = store.by_host = lambda *_: pytest.fail("this would wait for ever")
    registry.look()
    registry.left("killed")
    registry.depart()
    assert registry.failure() == registry.report("mine") == registry.reach()
    assert not registry.ended_together()


def test_polling_ends_with_a_value_or_with_the_time():
    answers = iter([None, None, "there"])
    assert poll(lambda: next(answers), time.monotonic() + 5) == "there"
    assert poll(lambda: None, time.monotonic() - 1) is None
