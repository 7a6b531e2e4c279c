"""Identifies a process on a machine, and finds out whether another process of the same machine is alive."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Process", "is_suspended", "lives", "this_process"]

# Environment variable that names this machine, for clones of a virtual machine with equal boot ids and host names.
MACHINE = "INFEED_MACHINE"
PROC = Path("/proc")
STATE, STARTED = 0, 19  # fields of /proc/<pid>/stat after the program's name


@dataclass(frozen=True)
class Process:
    """A process since the start of its machine. machine: host name and kernel; "" if unknown. namespace: of pids; each
    container has its own. started: in ticks since the machine started; a later process with this pid has another."""

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
    """The calling process."""
    host = platform.node()
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = str((PROC / "self/ns/pid").readlink())
        started = int(_stat(os.getpid())[STARTED])
    except OSError:  # without /proc no other process can check whether this one is alive
        return Process(host, "", "", os.getpid(), 0)
    kernel = f"{boot}-{os.environ[MACHINE]}" if MACHINE in os.environ else boot
    return Process(host, f"{host} {kernel}", namespace, os.getpid(), started)


def lives(process: Process, here: Process) -> bool | None:
    """Whether it is alive, perhaps suspended; None if `here` cannot see it: on another machine, in a container."""
    if not here.machine or (process.machine, process.namespace) != (here.machine, here.namespace):
        return None
    try:
        stat = _stat(process.pid)
        # A zombie has ended once only one thread is left: the others may still be writing.
        ended = stat[STATE] in "ZX" and len(list((PROC / str(process.pid) / "task").iterdir())) <= 1
    except OSError:
        return _is_hidden(process.pid)
    return not ended and int(stat[STARTED]) == process.started


def is_suspended(process: Process) -> bool:
    """Whether a living process was stopped, as by SIGSTOP."""
    try:
        return _stat(process.pid)[STATE] in "Tt"
    except OSError:
        return False


def _is_hidden(pid: int) -> bool:
    """Whether it is another user's, in a /proc that shows users only their own processes."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return False  # it is ours and has just ended


def _stat(pid: int) -> list[str]:
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
