"""How the processes of a run find each other, by flags of the command line. Used before anything else of jax."""

import ipaddress
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pipeline.errors import OptionError
from trainer.cluster.ports import check_host, split
from trainer.cluster.service import HEARTBEAT_SECONDS, in_own_process
from trainer.exits import EXIT_USER_ERROR, leave

__all__ = ["Distributed", "join"]

AUTO = "auto"
JAX_GRACE_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Distributed:
    """How this process finds the others of its run. Without a coordinator_address it is the only one."""

    coordinator_address: str | None = None
    """host:port of process 0, the same in every process; "auto" if JAX can determine all three (TPU pods, Slurm, Open
    MPI)."""
    num_processes: int | None = None
    """Number of processes in the run."""
    process_id: int | None = None
    """This process's number: 0, 1, ..."""
    connect_seconds: int = 300
    """How long to wait for all processes."""

    def __post_init__(self) -> None:
        place = {"num_processes": self.num_processes, "process_id": self.process_id}
        given = [f"{name}={value}" for name, value in place.items() if value is not None]
        if self.coordinator_address in (None, AUTO):
            if given:
                raise OptionError(
                    f"{given[0]} is given with coordinator_address={self.coordinator_address}. Give the host:port of "
                    "process 0 as coordinator_address, or none of these settings."
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
    """Connects this process with the others; call it before anything else of jax. A single process skips it.

    If not all processes connect in time, prints one line and ends the process with exit code 2; from then on, with one
    line and exit code 3 when another process dies. Raises: OptionError if process 0 cannot listen at the address, or if
    "auto" finds no cluster."""
    if settings.coordinator_address is None:
        return
    if settings.process_id == 0:
        check_host(settings.coordinator_address)
    import jax  # takes a second, for which --help need not wait

    from trainer.cluster.pulse import keep_beating

    # On its own timeout, which is later, JAX aborts the process with a C++ stack trace.
    timer = threading.Timer(settings.connect_seconds, _give_up, (settings,))
    timer.daemon = True
    timer.start()
    options: dict[str, Any] = {"heartbeat_timeout_seconds": HEARTBEAT_SECONDS}
    if settings.coordinator_address != AUTO:
        place = ("coordinator_address", "num_processes", "process_id")
        options |= {name: getattr(settings, name) for name in place}
        if _is_loopback(settings.coordinator_address):  # JAX would listen on every interface
            options["coordinator_bind_address"] = settings.coordinator_address
    try:
        with in_own_process():
            jax.distributed.initialize(**options, initialization_timeout=settings.connect_seconds + JAX_GRACE_SECONDS)
    except ValueError as error:
        if settings.coordinator_address != AUTO or isinstance(error, OptionError):
            raise
        raise OptionError(
            "coordinator_address=auto: JAX finds no TPU pod, Slurm, Open MPI or Kubernetes around this process "
            f"({str(error).rstrip('.')}). Start it with srun or mpirun, or give coordinator_address=host:port, "
            "num_processes and process_id."
        ) from error
    finally:
        timer.cancel()
    keep_beating()


def _give_up(settings: Distributed) -> None:
    processes = "the processes" if settings.num_processes is None else f"all {settings.num_processes} processes"
    print(
        f"error: {processes} did not connect to coordinator_address={settings.coordinator_address} within "
        f"{settings.connect_seconds} s (connect_seconds). Start each with the same address and its own process_id.",
        file=sys.stderr,
    )
    leave(EXIT_USER_ERROR)


def _is_place(address: str) -> bool:
    with suppress(ValueError):
        return bool(split(address)[0])
    return False


def _is_loopback(address: str) -> bool:
    host, _ = split(address)
    with suppress(ValueError):
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    return False
