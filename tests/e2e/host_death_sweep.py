"""Hosts 0 and 1 of two, each killed at ten random moments, as a table: .ci/sweep. Exits 1 if one did not end well.

python tests/e2e/host_death_sweep.py [kills of each host] [seed]"""

import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import fork_server

from converters import digits_raw, imagenet_to_gcs
from pipeline.errors import OptionError
from trainer.cluster.service import check_port

ROOT = Path(__file__).parents[2]
BOUND = 12  # host_timeout_seconds
SILENCE = 45  # between the trainer's calls, as before the first
SLACK = 8  # a process that ends on a busy machine
CONNECT = 20
LATEST = 15.0  # seconds after the start; the training begins in the middle of them


def main(count: int = 10, seed: int = 21) -> None:
    """Prints a row for each kill."""
    moments, failed = random.Random(seed), 0
    print("| host | killed after | while | the other's code | ended after | all it said last |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        digits_raw.write_raw(Path(scratch, "raw"))
        flags = [f"--raw-data-dir={scratch}/raw", f"--label-file={scratch}/raw/synsets.txt"]
        imagenet_to_gcs.main([*flags, f"--gcs-output-path={scratch}/data"])
        env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "JAX_PLATFORMS": "cpu"}
        with fork_server.serving(f"{scratch}/forks", env):
            server = fork_server.ForkServer(f"{scratch}/forks")
            for number in range(2 * count):
                failed += not killed(server, Path(scratch), number, moments.uniform(0, LATEST))
            server.close()
    print(f"\n{2 * count} kills, {failed} did not end well.")
    sys.exit(1 if failed else 0)


def killed(server: fork_server.ForkServer, scratch: Path, number: int, moment: float) -> bool:
    """Whether the other host ended well, and nothing was left behind."""
    host, workdir, address = number % 2, scratch / f"workdir{number}", free_address()
    flags = [f"--data-dir={scratch}/data", f"--workdir={workdir}", "--max-steps=10000000", "--iterations-per-loop=20"]
    flags += [f"--coordinator-address={address}", "--num-processes=2", f"--connect-seconds={CONNECT}"]
    flags += [f"--host-timeout-seconds={BOUND}", "--checkpoint-every-steps=200"]
    command = ["-m", "trainer", "digits", *flags]
    hosts = [server.start([*command, f"--process-id={i}"], scratch / f"{number}.{i}.txt") for i in range(2)]
    time.sleep(moment)
    trains, begun = workdir.exists(), time.monotonic()  # the call of the trainer makes it
    hosts[host].kill()
    try:
        code, _ = hosts[1 - host].wait(120)
    except subprocess.TimeoutExpired:
        code = None
    seconds, printed = time.monotonic() - begun, hosts[1 - host].printed
    said = printed.strip().rsplit("\n", 1)[-1]
    met = f"error: host {host} of 2 failed: " in said
    in_time = seconds < SLACK + (BOUND if trains else max(SILENCE * 9 / 8, CONNECT))
    ended = (code == 3 and met) or (code == 2 and not trains and "did not meet" in said)
    well = ended and in_time and "Check failure" not in printed and nobody_listens(address)
    for process in hosts:
        process.kill()
    phase = "it trains" if trains else "it begins"
    print(f"| {host} | {moment:.1f} s | {phase} | {code} | {seconds:.1f} s | {said[:110]} |", flush=True)
    if not well:
        print(f"NOT WELL:\n{printed[-4000:]}", flush=True)
    return well


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def nobody_listens(address: str) -> bool:
    """The port becomes free within a minute: the service has ended."""
    stop = time.monotonic() + 60
    while time.monotonic() < stop:
        try:
            check_port(address, lambda _: None)
        except OptionError:
            time.sleep(0.2)
        else:
            return True
    return False


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
