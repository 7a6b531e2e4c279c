"""Processes that begin with everything heavy imported: a server that imports it once, and forks.

For tests with several processes a row: TensorFlow, JAX and Beam cost 10 seconds of a core in each, and start no thread
and no backend before they are used. A forked process is one of its own from there on: pid, signals, sockets, exit."""

import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

IMPORTED = (
    *("trainer.trainer", "trainer.__main__", "trainer.recipes.tasks", "pipeline.datasets"),
    *("trainer.commands.running", "trainer.commands.loading"),
    *("beam_jobs.graph", "apache_beam.runners.portability.fn_api_runner.fn_runner", "pipeline.storage.gcs"),
    # of the tests themselves: each of xdist's workers would import them
    *("pipeline.tf_cpu", "tensorflow_datasets", "sklearn.metrics", "scipy.stats"),
)  # fmt: skip


class Forked:
    """One process, as far as a test uses a subprocess.Popen."""

    def __init__(self, server: "ForkServer", pid: int, out: Path) -> None:
        self.pid, self._server, self._out = pid, server, out

    @property
    def printed(self) -> str:
        """All that it has printed so far."""
        return self._out.read_text(errors="replace") if self._out.exists() else ""

    def wait_for(self, text: str, timeout: float = 60) -> None:
        """Until it has printed that. Raises TimeoutExpired, also where it ends without."""
        stop = time.monotonic() + timeout
        while text not in self.printed:
            if time.monotonic() > stop or (self.poll() is not None and text not in self.printed):
                raise subprocess.TimeoutExpired(f"{text!r} in {self.printed!r}", timeout)
            time.sleep(0.02)

    def poll(self) -> int | None:
        """Its exit code, -9 where a signal 9 ended it; None while it runs."""
        end = self._server.end(self.pid, seconds=0)
        return end and end[0]

    def wait(self, timeout: float = 60) -> tuple[int, float]:
        """(exit code, time.time()) of its end. Raises TimeoutExpired."""
        end = self._server.end(self.pid, timeout)
        if end is None:
            raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout)
        return end

    def send_signal(self, number: int) -> None:
        """Nothing where it has ended: the server has waited for it, and its pid may be another's."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """A connection to the server, which starts programs. Used by one thread."""

    def __init__(self, address: str) -> None:
        self._socket, self._ends = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), {}
        self._socket.connect(address)
        self._answers = selectors.DefaultSelector()
        self._answers.register(self._socket, selectors.EVENT_READ)
        assert self._read() == {"imported": True}

    def close(self) -> None:
        """What it has started need not have ended."""
        self._answers.close()
        self._socket.close()

    def start(
        self, command: Sequence[str], out: Path, env: Mapping[str, str] | None = None
    ) -> Forked:
        """Like `python *command >out 2>&1`: [script.py, ...], ["-m", module, ...] or ["-c", program, ...].

        env: default the server's. What is read of it as JAX is imported is the server's, always: JAX_*."""
        order = {"command": list(command), "out": str(out), "env": env and dict(env)}
        _send(self._socket, order)
        while "started" not in (answer := self._read()):
            pass
        # of an earlier process: the system gives a pid again after 32,768
        self._ends.pop(answer["started"], None)
        return Forked(self, answer["started"], out)

    def run(
        self, command: Sequence[str], out: Path, env: Mapping[str, str] | None, timeout: float
    ) -> tuple[int, str]:
        """(exit code, all that it printed), like subprocess.run."""
        process = self.start(command, out, env)
        try:
            code, _ = process.wait(timeout)
        finally:
            process.kill()
        return code, process.printed

    def end(self, pid: int, seconds: float) -> tuple[int, float] | None:
        """(exit code, time.time()) of the end of `pid`; None where it has not ended within that time."""
        stop = time.monotonic() + seconds
        while pid not in self._ends and self._answers.select(max(0.0, stop - time.monotonic())):
            self._read()
        return self._ends.get(pid)

    def _read(self) -> dict[str, Any]:
        answer = _received(self._socket)
        assert answer is not None, "the fork server is gone"
        if "ended" in answer:
            self._ends[answer["ended"]] = answer["code"], answer["at"]
        return answer


@contextlib.contextmanager
def serving(address: str, env: Mapping[str, str]) -> Iterator[None]:
    """A server with this environment listens at `address`, a path. It imports once somebody connects; several may."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen()
        command = [sys.executable, __file__, str(listening.fileno())]
        options: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "pass_fds": [listening.fileno()],
            "env": dict(env),
        }
        # Ctrl-C is for pytest: it ends the tests, and then the server.
        process = subprocess.Popen(command, start_new_session=True, **options)
    with process:  # it ends where nobody holds its stdin open any more
        yield


def serve(listening: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Forks for every order that comes. Returns in each child, with its order and the files that came with it; in the
    server at the end."""
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(listening, selectors.EVENT_READ)
    running: dict[int, tuple[int, socket.socket]] = {}  # pidfd -> pid, who ordered it
    while True:
        for key, _ in selector.select():
            if key.fileobj == 0:
                return None
            if key.fileobj is listening:
                _import_all()
                client, _ = listening.accept()
                selector.register(client, selectors.EVENT_READ)
                _send(client, {"imported": True})
            elif key.fd in running:
                selector.unregister(key.fd)
                pid, client = running.pop(key.fd)
                os.close(key.fd)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(OSError):  # it has gone
                    _send(client, {"ended": pid, "code": code, "at": time.time()})
            elif (ordered := _ordered(client := key.fileobj)) is not None:
                # Python 3.12 warns of OpenBLAS's and jemalloc's threads, which are prepared for a fork.
                with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
                    pid = os.fork()
                if not pid:
                    return ordered
                for descriptor in ordered[1]:
                    os.close(descriptor)
                running[selector.register(os.pidfd_open(pid), selectors.EVENT_READ).fd] = (
                    pid,
                    client,
                )
                _send(client, {"started": pid})
            else:
                selector.unregister(client)
                client.close()


@functools.cache
def _import_all() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    _let_all_processes_keep_programs()
    importlib.import_module("program_cache").write_programs_completely()
    gc.collect()
    gc.freeze()  # or a child's first collection looks at, and copies, all that was imported


def _let_all_processes_keep_programs() -> None:
    """JAX's cache takes programs from process 0 alone, but on CPUs the other processes' have keys of their own."""
    first = types.SimpleNamespace(process_id=0, client=None)
    sys.modules["jax._src.compiler"].distributed = types.SimpleNamespace(global_state=first)  # pyright: ignore


def _send(to: socket.socket, message: dict[str, Any]) -> None:
    to.send(json.dumps(message).encode())  # of SOCK_SEQPACKET: all of it, and apart from the next


def _received(client: socket.socket) -> dict[str, Any] | None:
    message = client.recv(1 << 20)
    return json.loads(message) if message else None


def _ordered(client: Any) -> tuple[dict[str, Any], list[int]] | None:
    message, descriptors, _, _ = socket.recv_fds(client, 1 << 20, 3)
    return (json.loads(message), descriptors) if message else None


def forward(address: str, command: list[str]) -> int:
    """Runs `python *command` in a forked process that has the stdin, stdout and stderr of this one; its exit code."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(address)
        order = {"command": command, "out": None, "env": dict(os.environ)}
        socket.send_fds(server, [json.dumps(order).encode()], [0, 1, 2])
        while "ended" not in (answer := _received(server) or {"ended": None, "code": 1}):
            pass
    return answer["code"]


def run(
    command: list[str], out: str | None, env: dict[str, str] | None, descriptors: Sequence[int]
) -> None:
    """What `python *command >out 2>&1` does once it is up. descriptors: stdin, stdout and stderr, where out is None."""
    if out is not None:
        file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        descriptors = [os.open(os.devnull, os.O_RDONLY), file, os.dup(file)]
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
    # tests that run in the background ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
        sys.path[:0] = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    if command[0] == "-c":
        sys.argv = ["-c", *command[2:]]
        exec(command[1], {"__name__": "__main__"})
    elif command[0] == "-m":
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        sys.path.insert(0, str(Path(command[0]).parent))
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        ordered = serve(socket.socket(fileno=int(sys.argv[1])))
        if ordered is not None:
            run(**ordered[0], descriptors=ordered[1])
    else:  # ADDRESS -u -c PROGRAM, as execnet starts a worker of xdist
        sys.exit(forward(sys.argv[1], sys.argv[3:]))
