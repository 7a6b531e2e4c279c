"""What hosts tell each other, and how far the inputs of all reach, with threads for hosts over one store."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from host_stores import exchanges_of, stores_of, wait
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples

from pipeline.errors import DisagreementError, HostError
from trainer.hosts.exchange import Exchange


def on_all(count, exchanged):
    """What `exchanged(exchange)` returns on each of `count` hosts."""
    with ThreadPoolExecutor(count) as pool:
        return [*pool.map(exchanged, exchanges_of(count))]


@pytest.mark.parametrize("value", [None, False, 0, "", {"loss": 0.5}, [1, "é"]])
@pytest.mark.parametrize("count", [1, 3])
def test_every_host_gets_what_host_0_makes_and_only_host_0_makes_it(count, value):
    makers = []

    def exchanged(exchange):
        return exchange.from_host_0("value", lambda: makers.append(exchange.index) or value, 10.0)

    assert on_all(count, exchanged) == [value] * count
    assert makers == [0]


def test_repeated_exchanges_of_one_name_do_not_mix():
    def exchanged(exchange):
        return [
            exchange.from_host_0("value", lambda number=number: number, 10.0)
            for number in range(20)
        ]

    assert on_all(3, exchanged) == [[*range(20)]] * 3


def test_a_host_that_waits_for_host_0_in_vain_says_so():
    _, other = exchanges_of(2)
    with pytest.raises(
        HostError, match=r"^host 0 of 2 did not make the same call within 0\.1 s: see its log"
    ):
        other.from_host_0("value", lambda: 1, 0.1)


def test_values_of_all_hosts_are_gathered_in_the_order_of_hosts():
    found = on_all(
        12, lambda exchange: [*exchange.gather("place", exchange.index**2, 10.0).items()]
    )
    assert found == [[(host, host**2) for host in range(12)]] * 12


def test_gather_returns_the_values_of_hosts_that_answer_in_time():
    first, _, third = exchanges_of(3)
    third.tell("place", "c")
    assert first.gather("place", "a", 0.1) == {0: "a", 2: "c"}


def test_exchanges_of_different_calls_do_not_mix():
    first, second = (Exchange(store, call, wait) for call, store in enumerate(stores_of(2)))
    first.from_host_0("value", lambda: 1)
    with pytest.raises(HostError, match="did not make the same call"):
        second.from_host_0("value", lambda: 2, 0.1)


def hosts_of(count):
    return [exchange.common_end() for exchange in exchanges_of(count)]


def steps_of(common, batches, lengths):
    """How many steps a host trains that has `batches`, asking as the feeder does."""
    step = 0
    for length in lengths:
        read = min(step + length, batches)
        agreed = common(read, read < step + length)
        if agreed < step + length:
            return agreed
        step = agreed
    return step


@settings(max_examples=examples(60), deadline=None)
@given(
    batches=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    lengths=st.lists(st.integers(1, 7), min_size=31, max_size=31),
)
def test_all_hosts_train_as_many_steps_as_the_shortest_input_has(batches, lengths):
    hosts = hosts_of(len(batches))
    with ThreadPoolExecutor(len(hosts)) as pool:
        steps = [*pool.map(lambda host, count: steps_of(host, count, lengths), hosts, batches)]
    assert steps == [min(batches)] * len(batches)


@settings(max_examples=examples(40), deadline=None)
@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    count=st.integers(2, 4),
    change=st.integers(1, 50),
    data=st.data(),
)
def test_hosts_that_deliver_other_batches_all_end_with_an_error_at_the_dispatch_where_they_differ(
    lengths, count, change, data
):
    hosts, changed = hosts_of(count), data.draw(st.integers(0, count - 1))
    ends = [*itertools.accumulate(lengths)]

    def asked(host):
        for step in ends:
            digest = step if host != changed or step < change else -1
            try:
                assert hosts[host](step, False, digest) == step
            except DisagreementError as error:
                return step, str(error)
        return None, None

    with ThreadPoolExecutor(count) as pool:
        found = [*pool.map(asked, range(count))]
    expected = next((step for step in ends if step >= change), None)
    assert {step for step, _ in found} == {expected}
    if expected:
        assert all(
            f"different batches up to step {expected}, but each must deliver the same" in e
            for _, e in found
        )


def test_hosts_whose_inputs_end_at_different_steps_fail():
    first, second = hosts_of(2)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(first, 7, True, 1)
        with pytest.raises(DisagreementError, match="up to step 8"):
            second(8, False, 2)
        with pytest.raises(DisagreementError, match="up to step 7"):
            waiting.result()


def test_closing_ends_the_wait_for_a_host_that_never_asks():
    common, _ = hosts_of(2)
    waiting = threading.Thread(target=common, args=(3, False))
    waiting.start()
    while not common.waiting:
        pass
    common.close()
    waiting.join(10)
    assert not waiting.is_alive()
    assert not common.waiting
