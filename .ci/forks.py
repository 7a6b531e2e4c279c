"""Runs programs in forks of a process that has imported TensorFlow, JAX and what is heavy near them: five CPU seconds.

    python .ci/forks.py FD    FD: a connection of multiprocessing, which brings the programs' files, one by one

The answer to each is (exit code, CPU seconds). A program begins as `python FILE` does, but finds these libraries
imported, and none of infeed's modules. Forking is safe, as in tests/servers/fork_server.py: before they are used, the
libraries start no backend, and no thread that is not prepared for a fork."""

import gc
import importlib
import os
import sys
import types
import warnings
from multiprocessing.connection import Connection
from pathlib import Path

LIBRARIES = ("pipeline.tf_cpu", "flax.nnx", "jax", "optax", "orbax.checkpoint")  # the first imports TensorFlow quietly


def import_libraries() -> None:
    """Imports them, and forgets infeed's modules: each program imports those it names."""
    for name in LIBRARIES:
        importlib.import_module(name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "pipeline"]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()  # or a fork's first collection looks at, and copies, all that was imported


def next_program(connection: Connection) -> str | None:
    """Forks for each file. Returns its name in the fork; None in this process, when no more will come."""
    while True:
        try:
            file = connection.recv()
        except EOFError:
            return None
        # Python 3.12 warns of OpenBLAS's and jemalloc's threads, which are prepared for a fork.
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            child = os.fork()
        if not child:
            connection.close()
            return file
        _, status, usage = os.wait4(child, 0)
        connection.send((os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime))


def run(file: str) -> None:
    """What `python FILE` does once it is up."""
    sys.argv, sys.path[0] = [file], str(Path(file).parent)
    program = sys.modules["__main__"] = types.ModuleType("__main__")
    program.__file__ = file
    exec(compile(Path(file).read_bytes(), file, "exec"), program.__dict__)


if __name__ == "__main__":
    import_libraries()
    program = next_program(Connection(int(sys.argv[1])))
    if program is not None:
        run(program)
