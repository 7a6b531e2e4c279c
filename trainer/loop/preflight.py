"""Compares what all hosts are about to do, before the first compilation: a difference would make
the run hang.

There is one small exchange: every host publishes its facts, host 0 compares them, and all hosts
read its verdict."""

import itertools
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from pipeline.errors import DisagreementError
from trainer.checkpointing.owner import mark_of
from trainer.hosts.exchange import Exchange
from trainer.loop.job import Job, OpenedInput
from trainer.mesh.batch_spec import named_leaves

HOSTS_NAMED = 8
OF_INPUT = ("fingerprint", "num_records", "steps_per_epoch", "expected_crc", "on_error")
SHARED_DISK_SECONDS = 5.0  # until a shared disk shows a new file to another host
PER_HOST = ("workdir", "compilation_cache_dir")  # a shared disk may be mounted at different paths


def agree(
    exchange: Exchange,
    facts: Callable[[], Mapping[str, Any]],
    workdir: str,
    mark: str,
    seconds: float,
) -> None:
    """Returns when all hosts are here with the same facts, and see the same work directory.

    mark: of the work directory, on host 0; "" if it is of no interest. HostError, on every host,
    naming the first fact that differs and the hosts of each value; the hosts that are missing after
    this time; or the failure of another host."""
    count = exchange.count
    if count == 1:
        return
    # The others wait longer: host 0 determines which hosts are missing.
    mark = exchange.from_host_0("mark", lambda: mark, 2 * seconds)
    # With another work directory, Orbax would wait for ten minutes.
    whose = "host 0's"
    if mark and not exchange.wait(lambda: mark_of(workdir) == mark or None, SHARED_DISK_SECONDS):
        whose = f"another directory ({workdir}; give one that all hosts share)"
    facts_of_host = {"workdir": whose, **facts()}
    if exchange.index > 0:
        exchange.tell("facts", facts_of_host)

    def judged() -> str:
        return _problem(exchange.gather("facts", facts_of_host, seconds), count, seconds)

    if problem := exchange.from_host_0("problem", judged, 2 * seconds):
        raise DisagreementError(problem)


def _problem(facts: Mapping[int, Mapping[str, Any]], count: int, seconds: float) -> str:
    """What is wrong with the facts of these hosts, which told them in time; "" for nothing."""
    if missing := sorted(set(range(count)) - facts.keys()):
        return (
            f"{_named(missing)} of {count} did not start the same call within {seconds:g} s "
            "(stall_seconds). Its input may be stalled, or it runs another program: see its log."
        )
    differs = difference([facts[host] for host in range(count)])
    remedy = "Start the same command on every host, on the same data."
    return differs and f"the hosts do not agree: {differs} {remedy}"


def facts_of(
    job: Job, inputs: Sequence[OpenedInput], start: int, end: int | None
) -> dict[str, Any]:
    """What must be equal on all hosts, as JSON: settings, devices and steps; data, sizes and order
    of the inputs."""
    devices = job.placement.mesh.devices
    facts = {name: value for name, value in job.config.to_json().items() if name not in PER_HOST}
    facts |= {
        "jax": jax.__version__,
        "mesh": (
            f"{dict(job.placement.mesh.shape)}, devices {[device.id for device in devices.flat]}"
        ),
        "start step": start,
        "end step": end,
    }
    for opened in inputs:
        which = f"{opened.mode}: " if len(inputs) > 1 else ""
        facts |= {f"{which}{name}": value for name, value in _facts_of_input(job, opened).items()}
    return facts


def _facts_of_input(job: Job, opened: OpenedInput) -> dict[str, Any]:
    source = opened.source
    axes = job.placement.axes
    # Without the axis of the batch: hosts may have different numbers of rows.
    rows = axes.map(
        lambda x, axis: f"{x.dtype} {[*x.shape[:axis], *x.shape[axis + 1 :]]} per row",
        opened.struct,
    )
    order = source.state(source.info.start)
    model = named_leaves(job.abstract_state(opened))
    listing = "".join(
        f"{name} {leaf.dtype} {leaf.shape} {leaf.sharding.spec}\n" for name, leaf in model.items()
    )
    return {
        "mode": opened.mode,
        "the input": type(source).__name__,
        "global batch": opened.global_batch,
        **{name: getattr(source.info, name) for name in OF_INPUT},
        **{f"the batch's {name}": row for name, row in named_leaves(rows).items()},
        **{f"the input's {name}": value for name, value in order.items()},
        "model and optimizer": (
            f"{len(model)} arrays with checksum {zlib.crc32(listing.encode()):08x}"
        ),
    }


def difference(facts: Sequence[Mapping[str, Any]]) -> str:
    """One line with the first fact that differs, and the hosts of each value; "" if all agree."""
    for name in dict.fromkeys(itertools.chain(*facts)):
        hosts: dict[str, list[int]] = {}
        for host, of_host in enumerate(facts):
            hosts.setdefault(str(of_host.get(name, "not there")), []).append(host)
        if len(hosts) > 1:
            # The majority first: the last one is most likely the wrong one.
            groups = sorted(hosts.items(), key=lambda item: -len(item[1]))
            return (
                f"{name} is "
                f"{' and '.join(f'{value} on {_named(group)}' for value, group in groups)}."
            )
    return ""


def _named(hosts: Sequence[int]) -> str:
    shown = ", ".join(map(str, hosts[:HOSTS_NAMED]))
    more = f" and {len(hosts) - HOSTS_NAMED} more" if len(hosts) > HOSTS_NAMED else ""
    return f"host{'s' * (len(hosts) > 1)} {shown}{more}"
