"""How far the inputs of all hosts reach, with threads for hosts over one store."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples

from pipeline.errors import InputError
from trainer.cluster.common_end import CommonEnd
from trainer.cluster.host_registry import HostRegistry
from trainer.cluster.store import LocalStore


def hosts_of(count):
    store = LocalStore()
    return [CommonEnd(HostRegistry(store.view(i, count), 5.0)) for i in range(count)]


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
            except InputError as error:
                return step, str(error)
        return None, None

    with ThreadPoolExecutor(count) as pool:
        found = [*pool.map(asked, range(count))]
    expected = next((step for step in ends if step >= change), None)
    assert {step for step, _ in found} == {expected}
    if expected:
        assert all(f"different batches up to step {expected}, but each must deliver the same" in e for _, e in found)


def test_hosts_whose_programs_end_apart_end_with_an_error():
    first, second = hosts_of(2)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(first, 7, True, 1)
        with pytest.raises(InputError, match="up to step 8"):
            second(8, False, 2)
        with pytest.raises(InputError, match="up to step 7"):
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
