"""JAX's coordination service in a process of its own, so that the other hosts can end in order when process 0 dies.

JAX runs the service in process 0, and aborts all other processes within milliseconds of its death. Instead, process 0
starts `python -m trainer.cluster.service`, which loads only jaxlib: 0.3 s, and 24 MB of its own. It ends when no
process is connected any more, even if process 0 was killed without telling it.

JAX's public options were tried with 0.10.2 and do not help: with jax_enable_recoverability, without
jax_enable_preemption_service, with both, and in a loop of reached_preemption_sync_point, process 1 still aborts with
SIGABRT and a C++ stack trace when process 0 is killed, in a collective as well as between two."""

import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from pipeline.errors import OptionError

HEARTBEAT_SECONDS = 900  # without a heartbeat JAX aborts all processes; shorter timeouts of ours come first
LINGER_SECONDS = HEARTBEAT_SECONDS + 60  # a lost machine leaves its connection open
CALM_SECONDS = 1.0  # without any connection: a broken one may be restored
POLL_SECONDS = 0.2
STOP_SECONDS = 10.0
READY, STOP = b"ready", b"s"
BIND_ADDRESS = "JAX_COORDINATOR_BIND_ADDRESS"  # of jax: where process 0 listens, if not on every interface
LINUX = sys.platform == "linux"


class Service:
    """The service as JAX's process 0 holds it; the arguments are of JAX's factory. OptionError if it does not start."""

    def __init__(self, address: str, num_processes: int, **options: Any) -> None:
        order = json.dumps([os.getpid(), address, num_processes, options])
        # A new POSIX session, which the terminal's Ctrl-C does not reach: hosts need the service to save.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trainer.cluster.service", order],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True, cwd="/", env=_environment(),
        )  # fmt: skip
        assert self._process.stdout is not None
        with self._process.stdout as answer:
            if answer.read() != READY:
                code = self._process.wait()
                raise OptionError(
                    f"the coordination service did not start at {address} (exit code {code} of {sys.executable} -m "
                    "trainer.cluster.service). Give another port, the same on every host."
                )

    def shutdown(self) -> None:
        """Ends the service. JAX calls this last in process 0, after all processes have disconnected."""
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._process.communicate(STOP, STOP_SECONDS)


@contextmanager
def in_own_process() -> Iterator[None]:
    """In this block jax.distributed.initialize starts its service as a Service, if the port is free."""
    from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]  # takes 0.3 s

    def start(address: str, num_processes: int, **options: Any) -> Service:
        check_port(address, lambda text: print(text, file=sys.stderr))
        return Service(address, num_processes, **options)

    original = _jax.get_distributed_runtime_service
    _jax.get_distributed_runtime_service = start
    try:
        yield
    finally:
        _jax.get_distributed_runtime_service = original


def _environment() -> dict[str, str]:
    """For a process with this one's imports; its current directory must not come first."""
    path = os.pathsep.join(str(Path(place).absolute()) for place in sys.path)
    return os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "OPENBLAS_NUM_THREADS": "1"}


def serve(parent: int, address: str, num_processes: int, options: dict[str, Any]) -> NoReturn:
    """Runs the service until process `parent` ends it, or until `parent` is dead and no process is connected."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # sent to all processes of a job, so that they save and end
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]

    service = _jax.get_distributed_runtime_service(address, num_processes, **options)
    os.write(1, READY)
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), 1)  # readers of process 0's output do not wait for this process
    while os.getppid() == parent:  # a process that it forked may keep its end of the pipe open
        if select.select([0], [], [], POLL_SECONDS)[0]:
            if os.read(0, 1) == STOP:
                service.shutdown()
                os._exit(0)
            break
    with outliving(address):
        calm = time.monotonic()
        stop = calm + LINGER_SECONDS
        while (now := time.monotonic()) - calm < CALM_SECONDS and now < stop:
            calm = now if connections() else calm
            time.sleep(POLL_SECONDS)
        os._exit(0)  # shutting down gRPC's server takes seconds


def connections() -> int:
    """The number of this process's TCP connections: one for each living process of the run."""
    return sum(_is_connected(int(entry.name)) for entry in Path("/dev/fd").iterdir())


def _is_connected(descriptor: int) -> bool:
    try:
        probe = socket.socket(fileno=descriptor)
    except OSError:  # a file, or closed since it was listed
        return False
    try:
        return probe.family in (socket.AF_INET, socket.AF_INET6) and bool(probe.getpeername())
    except OSError:  # it listens
        return False
    finally:
        probe.detach()


# Whether process 0 can listen at its address. jaxlib cannot be asked: if a port is in use, it may crash with a
# segmentation fault, or share the port with another run's service.


def split(address: str) -> tuple[str, int]:
    """host and port of host:port or [host]:port. ValueError if it has no port in 1..65535."""
    host, _, port = address.rpartition(":")
    if not 0 < int(port) < 2**16:
        raise ValueError(f"port {port}")
    return host.strip("[]"), int(port)


def check_host(address: str) -> None:
    """Raises OptionError unless the host in `address` is this one; skipped if the user sets where to listen."""
    if BIND_ADDRESS in os.environ:
        return
    host, port = split(address)
    try:
        places = _places(host, 0)
    except OSError as error:
        raise OptionError(
            f"coordinator_address={address} cannot be resolved: {error.strerror}. Give the name or address of the host "
            "that runs process_id=0, the same on every host."
        ) from error
    if all(_refusal(*place) == errno.EADDRNOTAVAIL for place in places):
        raise OptionError(
            f"coordinator_address={address} is not an address of this host, where process_id=0 runs. Give one at "
            f"which the other hosts can reach this host, the same on every host. If it leads here through a proxy or "
            f"a Kubernetes service, also set {BIND_ADDRESS}=[::]:{port} on this host."
        )


def check_port(address: str, say: Callable[[str], None]) -> None:
    """Raises OptionError if no process can listen at `address`. Waits while the service of a dead run still does."""
    host, port = split(address)
    waiting = False
    while refusal := _refusals(host, port):
        if not _is_outlived(port):
            raise OptionError(
                f"coordinator port {port} cannot be used on this host: {os.strerror(refusal[0])} (at {address}). Stop "
                "the program that uses it, or give another port in coordinator_address, the same on every host."
            )
        if not waiting:
            say(f"port {port} is in use by a run whose process 0 died; waiting until its other hosts have ended")
        waiting = True
        time.sleep(POLL_SECONDS)


@contextmanager
def outliving(address: str) -> Iterator[None]:
    """In this block other processes see that process 0 of the run that uses this port is dead."""
    with socket.socket(socket.AF_UNIX) as mark:
        if LINUX:
            with suppress(OSError):
                mark.bind(_mark(split(address)[1]))
        yield


def _is_outlived(port: int) -> bool:
    with socket.socket(socket.AF_UNIX) as mark:
        try:
            if LINUX:
                mark.bind(_mark(port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _mark(port: int) -> str:
    return f"\0infeed-outliving-{port}"  # not a file: the kernel removes it with its process; one per network


def _refusals(host: str, port: int) -> list[int]:
    """The error numbers of listening there; none if it works, even if only without IPv6."""
    numbers = [_refusal(*place) for place in _places(host, port)]
    serious = [number for number in numbers if number and number not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)]
    return serious if 0 in numbers else [number for number in serious or numbers if number]


def _places(host: str, port: int) -> list[tuple[int, Any]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [(family, address) for family, _, _, _, address in found]


def _refusal(family: int, address: Any) -> int:
    """The error number of listening there; 0 if it works."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ignores connections that have ended
            probe.bind(address)
    except OSError as error:
        return error.errno or errno.EADDRNOTAVAIL
    return 0


if __name__ == "__main__":
    serve(*json.loads(sys.argv[1]))
