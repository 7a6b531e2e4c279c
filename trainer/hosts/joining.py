"""How a process finds the others of its run, by flags. Used before anything else of jax."""

import os
import socket
import threading
from dataclasses import dataclass
from typing import Any

from pipeline.console.interrupts import Exit
from pipeline.errors import OptionError
from pipeline.logs import logger
from trainer.hosts.exits import leave, print_last

AUTO = "auto"
PLACE = ("coordinator_address", "num_processes", "process_id")
JAX_GRACE_SECONDS = 60
BIND_ADDRESS = (
    "JAX_COORDINATOR_BIND_ADDRESS"  # of jax: where process 0 listens, if not on every interface
)

log = logger("trainer")


@dataclass(frozen=True, kw_only=True)
class Distributed:
    """How this process finds the others of its run. Without a coordinator_address it is the only
    one."""

    coordinator_address: str | None = None
    """host:port of process 0, the same in every process; "auto" if JAX can determine all three (TPU
    pods, Slurm, Open MPI)."""
    num_processes: int | None = None
    """Number of processes in the run."""
    process_id: int | None = None
    """This process's number: 0, 1, ..."""
    connect_seconds: int = 300
    """How long to wait for all processes."""

    def __post_init__(self) -> None:
        numbers = {name: value for name in PLACE[1:] if (value := getattr(self, name)) is not None}
        settings = ", ".join(f"{name}={value}" for name, value in numbers.items())
        if self.coordinator_address in (None, AUTO):
            if numbers:
                raise OptionError(
                    f"{settings} is given with coordinator_address={self.coordinator_address}. "
                    "Give the host:port of process 0 as coordinator_address, or none of these "
                    "settings."
                )
            return
        if len(numbers) < 2 or _place(str(self.coordinator_address)) is None:
            raise OptionError(
                f"coordinator_address={self.coordinator_address} with "
                f"{settings or 'nothing else'}: several processes need "
                "coordinator_address=host:port, num_processes and process_id, all three."
            )
        if not 0 <= numbers["process_id"] < numbers["num_processes"]:
            raise OptionError(f"{settings}: process_id must be one of 0..num_processes-1.")


def join(settings: Distributed, host_timeout_seconds: float) -> None:
    """Connects this process with the others; call it before anything else of jax. A single process
    skips it.

    host_timeout_seconds: JAX ends this process if another one has been silent for so long. If not
    all processes connect in time, prints one line and ends the process with exit code 2. Raises:
    OptionError if process 0 cannot listen at the address, or if "auto" finds no cluster."""
    address = settings.coordinator_address
    if address is None:
        return
    options: dict[str, Any] = {"heartbeat_timeout_seconds": max(1, round(host_timeout_seconds))}
    if address != AUTO:
        if settings.process_id == 0 and BIND_ADDRESS not in os.environ:
            _check_can_listen(address)
        options |= {name: getattr(settings, name) for name in PLACE}
        # JAX would listen on every interface
        if address.startswith(("localhost:", "127.", "[::1]:")):
            options["coordinator_bind_address"] = address
    import jax  # takes a second, for which --help need not wait

    # On its own timeout, which is later, JAX aborts the process with a C++ stack trace.
    timer = threading.Timer(settings.connect_seconds, _give_up, (settings,))
    timer.daemon = True
    timer.start()
    try:
        jax.distributed.initialize(
            **options, initialization_timeout=settings.connect_seconds + JAX_GRACE_SECONDS
        )
    except ValueError as error:
        if address != AUTO:
            raise
        raise OptionError(
            "coordinator_address=auto: JAX finds no TPU pod, Slurm, Open MPI or Kubernetes around "
            f"this process ({str(error).rstrip('.')}). Start it with srun or mpirun, or give "
            "coordinator_address=host:port, num_processes and process_id."
        ) from error
    finally:
        timer.cancel()
    log.info(
        "joined the others: if one is lost, JAX aborts this process (exit code 134); the same "
        "command resumes"
    )


def _give_up(settings: Distributed) -> None:
    print_last(
        f"error: not all processes connected to coordinator_address={settings.coordinator_address} "
        f"within {settings.connect_seconds} s (connect_seconds). Start each with the same address "
        "and its own process_id."
    )
    leave(Exit.ERROR)


def _place(address: str) -> tuple[str, int] | None:
    """host and port of host:port or [host]:port; None if it has no port in 1..65535."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and 0 < int(port) < 2**16:
        return host.strip("[]"), int(port)
    return None


def _check_can_listen(address: str) -> None:
    """Raises OptionError unless this process can listen there: jaxlib may crash, or share the port
    with another run."""
    host, port = _place(address) or ("", 0)
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            # ignores connections that have ended
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        raise OptionError(
            f"process_id=0 cannot listen at coordinator_address={address}: {error.strerror}. Give "
            "an address of this host at which the others can reach it, with a port that no other "
            "program uses, the same on every host. If it leads here through a proxy or a "
            f"Kubernetes service, also set {BIND_ADDRESS}=[::]:{port} on this host."
        ) from error
