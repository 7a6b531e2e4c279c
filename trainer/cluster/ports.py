"""Whether process 0 can listen at its address. jaxlib cannot be asked: if a port is in use, it may crash with a
segmentation fault, or share the port with another run's service. Stdlib only."""

import errno
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pipeline.errors import OptionError

__all__ = ["check_host", "check_port", "outliving", "split"]

BIND_ADDRESS = "JAX_COORDINATOR_BIND_ADDRESS"  # of jax: where process 0 listens, if not on every interface
POLL_SECONDS = 0.2
LINUX = sys.platform == "linux"


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
