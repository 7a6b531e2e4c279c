"""Without a network, a command says within five seconds what it waits for and why, and Ctrl-C ends it promptly."""

import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

BUCKET = "gs://a-bucket/data"
HANGING = """
import threading
from pipeline.storage.storage import in_parallel
from pipeline.console.parser import exit_with

def hang(_):
    print("hangs", flush=True)
    threading.Event().wait()

exit_with(lambda: in_parallel(hang, [1]))
"""


@pytest.fixture
def nobody():
    """The address of a port that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{s.getsockname()[1]}"


@pytest.fixture
def silent():
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


class Waiting:
    """A command that waits: the lines that it prints, each with the seconds since its start."""

    def __init__(self, *command, **env):
        self.began, self.lines = time.monotonic(), queue.SimpleQueue()
        env = {
            name: value
            for name, value in os.environ.items()
            if "GOOGLE" not in name and "PROXY" not in name.upper()
        } | env
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
        )
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put((time.monotonic() - self.began, line.rstrip()))

    def interrupt(self):
        """(exit code, seconds until it ended, last line)"""
        began = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        status, took = self.process.wait(60), time.monotonic() - began
        return status, took, self.lines.get(timeout=5)[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()


@pytest.mark.slow
def test_a_command_without_a_network_says_so_after_three_seconds_and_ctrl_c_ends_it(
    nobody, silent, tmp_path
):
    describe = ("-m", "pipeline.commands.describe", BUCKET)
    metadata = {"GCE_METADATA_HOST": silent, "GCE_METADATA_IP": silent, "HOME": str(tmp_path)}
    with (
        Waiting(*describe, STORAGE_EMULATOR_HOST=f"http://{nobody}") as refused,
        Waiting(*describe, STORAGE_EMULATOR_HOST=f"http://{silent}") as unanswered,
        Waiting(*describe, **metadata) as unknown,
    ):
        for waiting, line in [
            (
                refused,
                rf"still trying to (find|list|read) {BUCKET}.* after 3 s: .*Connection refused",
            ),
            (unanswered, rf"still trying to (find|list|read) {BUCKET}.* after 3 s: no answer yet"),
            (
                unknown,
                r"still trying to find Google's default credentials after 3 s: no answer yet",
            ),
        ]:
            assert re.search(line, waiting.lines.get(timeout=20)[1])
        for waiting in (refused, unanswered, unknown):
            status, seconds, last = waiting.interrupt()
            assert (status, last) == (130, "interrupted.")
            assert seconds < 10  # where the retries take minutes


def test_ctrl_c_does_not_wait_for_calls_in_parallel_that_hang():
    with Waiting("-c", HANGING) as waiting:
        assert waiting.lines.get(timeout=20)[1] == "hangs"
        # Python notices a signal that comes just before the main thread waits for a lock only after
        # it
        time.sleep(0.5)
        status, seconds, last = waiting.interrupt()
        assert (status, last) == (130, "interrupted.")
        assert seconds < 10  # where the retries take minutes
