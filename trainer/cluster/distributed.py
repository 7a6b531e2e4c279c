"""What a process computes on and how it finds the others of its run, by flags. Used before anything else of jax."""

import ipaddress
import os
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.errors import OptionError, how_to_install
from trainer.cluster.service import HEARTBEAT_SECONDS, check_host, in_own_process, split
from trainer.exits import EXIT_USER_ERROR, leave

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

    from trainer.cluster.host_registry import start_heartbeats

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
    start_heartbeats()


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


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Which devices this process uses. The program is the same on all kinds."""

    platform: Literal["cpu", "cuda", "tpu"] | None = None
    """Where to compute. Default: the best platform that JAX finds."""
    num_devices: int | None = None
    """On the CPU: how many devices to simulate, for example to rehearse a run on that many."""

    def __post_init__(self) -> None:
        if self.num_devices is not None and self.platform != "cpu":
            raise OptionError(
                f"num_devices={self.num_devices} is given with platform={self.platform}. Only platform=cpu can "
                "simulate any number of devices; other platforms use all their devices. Give --platform cpu, too."
            )
        if self.num_devices is not None and self.num_devices < 1:
            raise OptionError(f"num_devices={self.num_devices} must be an int above 0.")

    def choose(self) -> None:
        """Configures JAX; call it before JAX is used for the first time."""
        import jax  # takes a second, for which --help need not wait

        if self.platform is not None:
            jax.config.update("jax_platforms", self.platform)
        if self.num_devices is not None:
            jax.config.update("jax_num_cpu_devices", self.num_devices)
        # XLA's threads are as many as cores or devices. With one per device, an all-reduce waits for ever once another
        # task has taken one: on two cores, four devices hung in 9 of 20 evaluations, in none of 60 with twice as many.
        simulated = jax.config.jax_num_cpu_devices  # pyright: ignore[reportAttributeAccessIssue] -1: none
        threads = max(os.cpu_count() or 1, 2 * simulated)
        os.environ.setdefault("NPROC", str(threads))

    def check(self) -> None:
        """Raises OptionError if there are no such devices. Call it after `join`: JAX looks for devices here."""
        import jax

        try:
            jax.devices()
        except (RuntimeError, AssertionError) as error:  # it asserts if it finds no GPU
            reason = str(error).partition("\n")[0].partition(" (set JAX_PLATFORMS")[0] or "JAX finds no NVIDIA GPU"
            platform = self.platform or f"{os.environ.get('JAX_PLATFORMS')} (of JAX_PLATFORMS)"
            extras = [name for name in ("cuda", "tpu") if name in platform] or ["cuda", "tpu"]
            raise OptionError(
                f"platform={platform} is not available on this machine: {reason.rstrip('.')}. Choose --platform cpu, "
                f"or install what it needs: {' or '.join(map(how_to_install, extras))}."
            ) from error
