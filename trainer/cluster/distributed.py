"""Several processes as one run: how they find each other, by flags of the command line. At the edge, before any jax."""

import ipaddress
import sys
import threading
from dataclasses import dataclass
from typing import Any

from pipeline.shards.errors import OptionError
from trainer.cluster.ports import check_host, split
from trainer.cluster.service import HEARTBEAT_SECONDS, in_own_process
from trainer.exits import EXIT_USER_ERROR, leave

__all__ = ["Distributed", "join"]

AUTO = "auto"
JAX_GRACE_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Distributed:
    """How this process finds the others of its run. Without a coordinator_address it is alone."""

    coordinator_address: str | None = None
    """host:port of process 0, the same in every process; "auto" where JAX can find out all three by itself (TPU pods,
    Slurm, Open MPI)."""
    num_processes: int | None = None
    """How many processes the run has."""
    process_id: int | None = None
    """Which of them this is: 0, 1, ..."""
    connect_seconds: int = 300
    """How long to wait until all processes are there."""

    def __post_init__(self) -> None:
        place = {"num_processes": self.num_processes, "process_id": self.process_id}
        given = [f"{name}={value}" for name, value in place.items() if value is not None]
        if self.coordinator_address in (None, AUTO):
            if given:
                raise OptionError(
                    f"{given[0]} is given with coordinator_address={self.coordinator_address}. Give the host:port of "
                    "process 0 as coordinator_address, or none of the others."
                )
            return
        if None in place.values() or not _is_place(str(self.coordinator_address)):
            raise OptionError(
                f"coordinator_address={self.coordinator_address} with {', '.join(given) or 'nothing else'}: several "
                "processes need coordinator_address=host:port, num_processes and process_id, all three."
            )
        if not 0 <= (self.process_id or 0) < (self.num_processes or 0):
            raise OptionError(
                f"process_id={self.process_id} is not one of {self.num_processes} processes. Allowed: "
                f"0..{(self.num_processes or 0) - 1}."
            )


def join(settings: Distributed) -> None:
    """Connects this process with the others; before anything else of jax. Nothing where it is alone.

    Ends the process with exit code 2 and one line when they are not all there in time; from here on with 3 and one line
    when one of them dies. Raises: OptionError where process 0 cannot listen at the address."""
    if settings.coordinator_address is None:
        return
    if settings.process_id == 0:
        check_host(settings.coordinator_address)
    import jax  # takes a second, which the flags' help need not wait for

    from trainer.cluster.pulse import keep_beating

    # JAX aborts the process when its own time is up, with a stack trace of its C++; ours comes first.
    timer = threading.Timer(settings.connect_seconds, _give_up, (settings,))
    timer.daemon = True
    timer.start()
    options: dict[str, Any] = {"heartbeat_timeout_seconds": HEARTBEAT_SECONDS}
    if settings.coordinator_address != AUTO:
        options |= {
            "coordinator_address": settings.coordinator_address,
            "num_processes": settings.num_processes,
            "process_id": settings.process_id,
        }
        if _is_loopback(settings.coordinator_address):  # JAX would listen on every interface
            options["coordinator_bind_address"] = settings.coordinator_address
    try:
        with in_own_process():
            jax.distributed.initialize(**options, initialization_timeout=settings.connect_seconds + JAX_GRACE_SECONDS)
    finally:
        timer.cancel()
    keep_beating()


def _give_up(settings: Distributed) -> None:
    processes = "the processes" if settings.num_processes is None else f"all {settings.num_processes} processes"
    print(
        f"error: {processes} did not meet at coordinator_address={settings.coordinator_address} within "
        f"{settings.connect_seconds} s (connect_seconds). Start each with the same address and its own process_id.",
        file=sys.stderr,
    )
    leave(EXIT_USER_ERROR)


def _is_place(address: str) -> bool:
    try:
        return bool(split(address)[0])
    except ValueError:
        return False


def _is_loopback(address: str) -> bool:
    host, _ = split(address)
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
