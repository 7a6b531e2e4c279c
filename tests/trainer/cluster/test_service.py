"""The process of the coordination service: it outlives process 0 for as long as a host is connected."""

import os
import select
import signal
import socket
import subprocess
import sys

import pytest

from pipeline.errors import OptionError
from trainer.cluster.service import check_port

pytestmark = pytest.mark.slow

# A connection is all that the service sees of a host; JAX's own are in tests/e2e.
PROCESS_0 = """
import sys
from trainer.cluster.service import Service
service = Service(sys.argv[1], 2, heartbeat_timeout=900)
print(service._process.pid, flush=True)
sys.stdin.read()
service.shutdown()
"""


class Started:
    """A process 0, the pid of its service, and a file that becomes readable when that has ended."""

    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        command = [sys.executable, "-c", PROCESS_0, self.address]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = int(self.process.stdout.readline())
        self.end = os.pidfd_open(self.pid)

    def has_ended(self, seconds):
        return bool(select.select([self.end], [], [], seconds)[0])


@pytest.fixture
def started():
    one = Started()
    with one.process:
        yield one
        one.process.kill()
    if not one.has_ended(0):
        os.kill(one.pid, signal.SIGKILL)
    os.close(one.end)


def test_a_service_outlives_signals_and_process_0_while_a_host_is_connected(started):
    assert os.getsid(started.pid) != os.getsid(0)  # Ctrl-C on the terminal does not reach it
    host = socket.create_connection(("127.0.0.1", started.port))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # what clusters send to all processes of a job
        os.kill(started.pid, number)
    with pytest.raises(OptionError, match=f"coordinator port {started.port} cannot be used on this host"):
        check_port(started.address, pytest.fail)
    started.process.kill()
    assert not started.has_ended(2.5)
    check_port(started.address, lambda _: host.close())  # the next run waits for the hosts of this one
    assert started.has_ended(60)


def test_nothing_is_left_behind_when_process_0_is_killed_before_anybody_connected(started):
    started.process.kill()
    assert started.has_ended(60)


def test_a_service_ends_with_a_process_0_that_ends_in_order(started):
    with socket.create_connection(("127.0.0.1", started.port)):
        started.process.communicate(timeout=60)
        assert started.process.returncode == 0
        assert started.has_ended(0)
    check_port(started.address, pytest.fail)
