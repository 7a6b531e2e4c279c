"""A helper process that ends this one if code in C holds Python's lock: then no thread of this process can.

The watchdog's thread writes a line to it every half second. Without lines for the time that the last one states, the
helper says so and kills the process 10 seconds later (137 in a shell), even if nobody reads that. A process that is
suspended (SIGSTOP, a debugger) is left alone. Only on Linux, where /proc tells that. Stdlib only."""

import atexit
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import NoReturn

POLL_SECONDS = 0.5
GRACE_SECONDS = 10.0
LEAVE_SECONDS = 5.0  # for the helper to end; one that was suspended cannot
RESTS, ENDS = "rests", "ends"
LINUX = sys.platform == "linux"


class Guard:
    """The helper of this process. Calls of the trainer share it; between them it rests."""

    def __init__(self) -> None:
        self._owner = 0
        self._pipe = -1

    def start(self) -> None:
        """Starts it, unless it runs already; a forked process starts its own."""
        if not LINUX or self._owner == os.getpid():
            return
        self._owner = os.getpid()
        # By its path and isolated: 15 ms, and no import of ours. In a session of its own, so that Ctrl-C spares it.
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(self._owner)],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, cwd="/",
            )  # fmt: skip
        except OSError:  # a program with Python inside has no interpreter to start
            self._pipe = -1
            return
        assert process.stdin is not None
        self._pipe = process.stdin.fileno()
        os.set_blocking(self._pipe, False)
        atexit.register(self._end, process, self._owner)

    def _end(self, process: subprocess.Popen[bytes], owner: int) -> None:
        if owner == os.getpid():  # not in a forked process, which also has the pipe
            self.tell(ENDS)
            try:
                process.communicate(timeout=LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()

    def tell(self, line: str) -> None:
        """The process runs Python. line: seconds until the next one is overdue, and what it does; or RESTS."""
        if self._owner == os.getpid():
            with contextlib.suppress(OSError):  # it was killed
                os.write(self._pipe, f"{line}\n".encode(errors="replace"))


GUARD = Guard()


def watch(process: int) -> NoReturn:
    """Reads lines from stdin until `process` has ended."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    line, polls = RESTS, 0
    while True:
        ready = select.select([0], [], [], POLL_SECONDS)[0]
        data = os.read(0, 1 << 16) if ready else b""
        if ready:
            line, polls = (data.decode().splitlines() or [ENDS])[-1], 0
        if line == ENDS or os.getppid() != process:
            os._exit(0)
        if not ready and line != RESTS and not _suspended(process):
            # Polls, not a clock: a machine that was suspended has lost no time.
            polls += 1
            _act(process, line, polls)


def _act(process: int, line: str, polls: int) -> None:
    seconds, _, what = line.partition(" ")
    late = round(float(seconds) / POLL_SECONDS)
    if polls == late:
        text = (
            f"error: process {process} has given no sign for {float(seconds):g} s: code in C holds Python's lock, or "
            f"nobody reads what it prints. It was last {what}. It is killed in {GRACE_SECONDS:g} s; the same command "
            "resumes from the last checkpoint.\n"
        )
        # In a thread, because this may wait for the same reader.
        threading.Thread(target=os.write, args=(2, text.encode()), daemon=True).start()
    if polls == late + round(GRACE_SECONDS / POLL_SECONDS):
        os.kill(process, signal.SIGKILL)


def _suspended(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "Tt"


if __name__ == "__main__":
    watch(int(sys.argv[1]))
