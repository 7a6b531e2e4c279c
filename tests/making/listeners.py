"""What processes listen on while something runs."""

import contextlib
import ipaddress
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil


@contextlib.contextmanager
def listeners(*others: int) -> Iterator[set[tuple[str, int]]]:
    """The (address, port) of all that this process, those of these pids, and their children listen on in the block."""
    found, ended, ours = set(), threading.Event(), [psutil.Process(), *map(psutil.Process, others)]

    def look() -> None:
        before = None
        while not ended.wait(0.3):
            if (
                now := _listening()
            ) != before:  # asking every process each time takes a third of a core
                before = now
                for process in ours:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        for each in (process, *process.children(recursive=True)):
                            found.update(_ports(each))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def exposed(found: set[tuple[str, int]]) -> set[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The addresses that other machines may reach."""
    hosts = {ipaddress.ip_address(host) for host, _ in found}
    return {host for host in hosts if not (getattr(host, "ipv4_mapped", None) or host).is_loopback}


def _listening() -> set[tuple[str, str]]:
    """(address, inode) of everything on this machine that listens, as the kernel tells it."""
    files = [Path("/proc/net", name) for name in ("tcp", "tcp6")]
    lines = [
        line.split() for file in files if file.exists() for line in file.read_text().splitlines()
    ]
    return {(words[1], words[9]) for words in lines if words[3] == "0A"}


def _ports(process: psutil.Process) -> set[tuple[str, int]]:
    with contextlib.suppress(psutil.NoSuchProcess):
        there = process.net_connections("tcp")
        return {
            (each.laddr.ip, each.laddr.port) for each in there if each.status == psutil.CONN_LISTEN
        }
    return set()
