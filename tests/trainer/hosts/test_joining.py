"""How processes find each other; runs that do are in tests/e2e."""

import os
import re
import socket
import subprocess
import sys

import pytest

from pipeline.errors import OptionError
from trainer.hosts.joining import Distributed, join


@pytest.mark.parametrize(
    ("address", "count", "number", "text"),
    [
        (None, None, 1, "process_id=1 is given with coordinator_address=None"),
        ("auto", 2, None, "num_processes=2 is given with coordinator_address=auto"),
        ("host:1", None, None, "coordinator_address=host:1 with nothing else"),
        ("host:1", 2, None, "with num_processes=2: several processes need"),
        ("host", 2, 0, "several processes need .*host:port"),
        ("host:1", 2, 2, "process_id must be one of 0"),
    ],
)
def test_flags_that_do_not_make_a_run_say_what_is_missing(address, count, number, text):
    with pytest.raises(OptionError, match=text):
        Distributed(coordinator_address=address, num_processes=count, process_id=number)


def test_a_single_process_joins_no_cluster():
    join(Distributed(), 90)


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def slurm_task(port):
    """The environment of a Slurm job's only task, whose service listens on loopback; by default it would everywhere."""
    slurm = {
        "JOB_ID": "7",
        "STEP_NODELIST": "localhost",
        "STEP_NUM_NODES": "1",
        "NTASKS": "1",
        "PROCID": "0",
    }
    task = {f"SLURM_{name}": value for name, value in slurm.items()} | {"SLURM_LOCALID": "0"}
    return task | {
        "JAX_COORDINATOR_PORT": str(port),
        "JAX_COORDINATOR_BIND_ADDRESS": f"127.0.0.1:{port}",
    }


@pytest.mark.slow
def test_auto_takes_the_coordinator_and_the_place_from_the_cluster(port):
    code = "import jax; from trainer.hosts.joining import *; join(Distributed(coordinator_address='auto'), 90); "
    code += "print(jax._src.distributed.global_state.coordinator_address, jax.process_index(), jax.process_count())"
    task = slurm_task(port) | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | task,
    )
    assert done.stdout == f"localhost:{port} 0 1\n", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_run_on_one_machine_listens_on_no_other_interface(run_forked, port, host):
    code = "import psutil; from trainer.hosts.joining import *\n"
    code += f"join(Distributed(coordinator_address='{host}:{port}', num_processes=1, process_id=0), 90)\n"
    code += "print([each.laddr.ip for each in psutil.Process().net_connections() if each.status == 'LISTEN'])"
    status, printed = run_forked(["-c", code], timeout=60)
    assert status == 0, printed
    assert printed.splitlines()[-1].replace("::ffff:", "") == "['127.0.0.1']"


@pytest.mark.slow
def test_auto_without_a_cluster_says_what_to_give_instead(run_forked):
    """In a process of its own: JAX takes only one that has not computed before."""
    code = "from trainer.hosts.joining import *\nfrom pipeline.errors import OptionError\n"
    code += "try:\n    join(Distributed(coordinator_address='auto'), 90)\nexcept OptionError as error:\n    print(error)"
    clusters = ("KUBERNETES_SERVICE_HOST", "JAX_COORDINATOR_ADDRESS")
    env = {name: value for name, value in os.environ.items() if name not in clusters}
    status, printed = run_forked(["-c", code], timeout=60, env=env)
    assert status == 0, printed
    text = r"^coordinator_address=auto: JAX finds no .*Slurm.* give coordinator_address=host:port, num_proc"
    assert re.search(text, printed, re.MULTILINE)


def joining(address):
    """What process 0 of two prints, and its exit code, at an address where it cannot listen."""
    code = "import sys; from trainer.__main__ import start; start(sys.argv[1:])"
    flags = [
        f"--coordinator-address={address}",
        "--num-processes=2",
        "--process-id=0",
        "--connect-seconds=120",
    ]
    command = [sys.executable, "-c", code, "digits", "--data-dir=none", "--workdir=none", *flags]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.slow
def test_a_coordinator_port_in_use_is_one_line_at_once():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        code, printed = joining(address)
    assert code == 2, printed
    assert printed.endswith(
        f"error: --process-id=0 cannot listen at --coordinator-address={address}: Address already in use. Give an "
        "address of this host at which the others can reach it, with a port that no other program uses, the same on "
        "every host. If it leads here through a proxy or a Kubernetes service, also set "
        "JAX_COORDINATOR_BIND_ADDRESS=[::]:"
        f"{address.split(':')[1]} on this host.\n"
    )
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        # of no host: reserved for documentation
        ("192.0.2.1:29871", "Cannot assign requested address"),
        ("no-such-host.invalid:29871", "Name or service not known"),
    ],
)
def test_an_address_of_another_host_is_one_line_at_once(address, problem):
    with pytest.raises(OptionError) as error:
        join(Distributed(coordinator_address=address, num_processes=2, process_id=0), 90)
    assert f"process_id=0 cannot listen at coordinator_address={address}: {problem}. Give" in str(
        error.value
    )


@pytest.mark.slow
def test_processes_that_do_not_meet_in_time_end_with_one_line(port):
    code = "from trainer.hosts.joining import *; join("
    code += "Distributed(coordinator_address='127.0.0.1:%d', num_processes=2,"
    done = subprocess.run(
        [sys.executable, "-c", f"{code % port} process_id=1, connect_seconds=1), 90)"],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert (
        f"error: not all processes connected to coordinator_address=127.0.0.1:{port} within 1 s (connect_seconds). "
        "Start each with the same address and its own process_id.\n"
    ) in done.stderr
    assert "Check failure" not in done.stderr
