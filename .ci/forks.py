"""Runs programs in forks of a process that has imported TensorFlow, JAX and what is heavy near
them: five CPU seconds.

    python .ci/forks.py serve ADDRESS                   imports, and forks until it is ended
    python .ci/forks.py ADDRESS FILE [ARGUMENT...]      is `python FILE ARGUMENT...`, in a fork
    python .ci/forks.py ADDRESS -m MODULE [ARGUMENT...]

A program has the directory, environment, stdin, stdout and stderr of the process that asks for it,
which ends as it does. It finds libraries imported, and none of infeed's modules. Forking is safe,
as in tests/servers/fork_server.py: before they are used, the libraries start no backend, and no
thread that is not prepared for a fork."""

import importlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

# the first imports TensorFlow quietly
LIBRARIES = ("pipeline.tf_cpu", "flax.nnx", "jax", "optax", "orbax.checkpoint")
MOST_BYTES = 1 << 20


def import_libraries() -> None:
    """Imports them, and forgets infeed's modules: each program imports those it names."""
    import gc

    for name in LIBRARIES:
        importlib.import_module(name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "pipeline"]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()  # or a fork's first collection looks at, and copies, all that was imported


def serve(address: str) -> tuple[dict, list[int]]:
    """Forks for every program. Returns in the fork: what was asked for, and its stdin, stdout and
    stderr."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(address)
    listening.listen()
    import_libraries()
    signal.signal(signal.SIGCHLD, reap)
    while True:
        client, _ = listening.accept()
        if fork():  # the first fork waits for the program, and the second is the program
            client.close()
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        listening.close()
        message, descriptors, _, _ = socket.recv_fds(client, MOST_BYTES, 3)
        program = fork()
        if not program:
            client.close()
            return json.loads(message), descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        client.send(str(status).encode())
        os._exit(0)


def reap(*_: object) -> None:
    """Waits for the forks that have ended, so that their CPU seconds are those of children of this
    process."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def fork() -> int:
    """Like os.fork, without the warning of Python 3.12: OpenBLAS's and jemalloc's threads are
    prepared for it."""
    import warnings

    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        return os.fork()


def run(asked: dict, descriptors: list[int]) -> None:
    """What `python FILE` and `python -m MODULE` do once they are up."""
    import runpy
    import types

    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(asked["directory"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    of_program = asked["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [place for place in of_program if place and place not in sys.path]
    importlib.invalidate_caches()  # what was installed meanwhile
    file, *arguments = asked["command"]
    if file == "-m":
        sys.argv, sys.path[0] = arguments, asked["directory"]
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    sys.argv, sys.path[0] = [file, *arguments], str(Path(file).resolve().parent)
    program = sys.modules["__main__"] = types.ModuleType("__main__")
    program.__file__ = file
    exec(compile(Path(file).read_bytes(), file, "exec"), program.__dict__)


def ask(address: str, command: list[str]) -> int:
    """Has a program run in a fork, and returns its exit code; ends as it does where a signal has
    ended it."""
    order = {"command": command, "directory": str(Path.cwd()), "environment": dict(os.environ)}
    with connected(address) as server:
        socket.send_fds(server, [json.dumps(order).encode()], [0, 1, 2])
        answer = server.recv(MOST_BYTES)
        server.recv(1)  # the end: then the CPU seconds of the fork are known, too
    if not answer:
        sys.exit(f"{address}: the process that forks has ended")
    status = int(answer)
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def connected(address: str) -> socket.socket:
    """A connection to the process that forks, which may have been started a moment ago."""
    stop = time.monotonic() + 60
    while True:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            server.connect(address)
            return server
        except (FileNotFoundError, ConnectionRefusedError):
            server.close()
            if time.monotonic() > stop:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        run(*serve(sys.argv[2]))
    else:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))
