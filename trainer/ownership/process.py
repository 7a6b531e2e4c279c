"""Which process on which machine: what an owner says of itself, and how others of its machine find out that it died."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Process", "is_suspended", "lives", "this_process"]

# A name for this machine, for clones of a virtual machine that run with one boot id and one host name.
MACHINE = "INFEED_MACHINE"
PROC = Path("/proc")
STATE, STARTED = 0, 19  # of the words of /proc/<pid>/stat after the program's name


@dataclass(frozen=True)
class Process:
    """A process since the start of its machine. machine: host name and kernel; "" where these cannot be told.
    namespace: of pids; each container has its own.

    started: in ticks since the machine's start, so that it tells a process from a later one with the same pid."""

    host: str
    machine: str
    namespace: str
    pid: int
    started: int

    def shares_kernel(self, other: "Process") -> bool:
        """Whether both are on one machine, perhaps in containers that do not see each other's processes."""
        kernel = self.machine.rpartition(" ")[2]
        return bool(kernel) and kernel == other.machine.rpartition(" ")[2]


def this_process() -> Process:
    """The one that asks."""
    host = platform.node()
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = str((PROC / "self/ns/pid").readlink())
        started = int(_stat(os.getpid())[STARTED])
    except OSError:  # a system without /proc: nobody can look for this process
        return Process(host, "", "", os.getpid(), 0)
    kernel = f"{boot}-{os.environ[MACHINE]}" if MACHINE in os.environ else boot
    return Process(host, f"{host} {kernel}", namespace, os.getpid(), started)


def lives(process: Process, here: Process) -> bool | None:
    """Whether it is there, perhaps suspended; None where `here` cannot see it: on another machine, in a container."""
    if not here.machine or (process.machine, process.namespace) != (here.machine, here.namespace):
        return None
    try:
        stat = _stat(process.pid)
        # Killed, but not waited for by its parent yet. Its last threads may still be in the middle of a write.
        ended = stat[STATE] in "ZX" and len(list((PROC / str(process.pid) / "task").iterdir())) <= 1
    except OSError:
        return _is_hidden(process.pid)
    return not ended and int(stat[STARTED]) == process.started


def is_suspended(process: Process) -> bool:
    """Whether a process that lives was stopped, as by SIGSTOP."""
    try:
        return _stat(process.pid)[STATE] in "Tt"
    except OSError:
        return False


def _is_hidden(pid: int) -> bool:
    """Whether it is another user's, in a /proc that shows each user only their own."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return False  # it is ours and ended in between


def _stat(pid: int) -> list[str]:
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
