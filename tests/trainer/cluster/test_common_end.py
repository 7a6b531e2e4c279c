"""How far the inputs of all hosts reach, with threads for hosts over one store."""

import threading
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples

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
