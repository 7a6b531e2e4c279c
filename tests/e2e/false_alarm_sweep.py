"""No false alarm of a stuck host: two processes train with random pauses of up to 60 % of the limits.

    python tests/e2e/false_alarm_sweep.py [--minutes 30] [--load 8] [--k 1 10]

Pauses in callbacks, in the input and on the devices; compilations; a wall clock that jumps by up to two hours; and for
a fifth of the time `load` other processes that compute. Exits 1 on an alarm. .ci/sweep runs it."""

import argparse
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORKER = Path(__file__).with_name("host_worker.py")
TIMEOUT = 20.0  # host_timeout_seconds
LIMITS = {"work_seconds": 60.0, "stall_seconds": 30.0}


def main() -> None:
    """Prints what the run said of its progress, and how it ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--load", type=int, default=8)
    dispatches = "steps per dispatch, of equal parts of the time"
    parser.add_argument("--k", type=int, nargs="+", default=[1, 10], help=dispatches)
    args = parser.parse_args()
    failed = 0
    seconds = 60 * args.minutes / len(args.k)
    for k in args.k:
        with tempfile.TemporaryDirectory() as out:
            hosts = [start(out, index, k, seconds) for index in range(2)]
            time.sleep(0.8 * seconds)
            last = {"target": compute, "args": (0.2 * seconds,)}
            busy = [multiprocessing.Process(**last) for _ in range(args.load)]
            for process in busy:
                process.start()
            codes = [host.wait() for host in hosts]
            for process in busy:
                process.join()
            printed = [Path(out, f"{index}.txt").read_text() for index in range(2)]
            told = [path.read_text() for path in sorted(Path(out).glob("[01].json"))]
        waited = sum(text.count("; host ") for text in printed)
        print(
            f"k={k}: exit codes {codes}, {told}, one waited for another {waited} times", flush=True
        )
        if codes != [0, 0]:
            failed += 1
            print(*(text[-4000:] for text in printed), sep="\n")
    sys.exit(failed)


def start(out: str, index: int, k: int, seconds: float) -> subprocess.Popen:
    """A process of the run; both find a free port by the first one's choice."""
    port = Path(out, "port")
    if not index:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port.write_text(str(s.getsockname()[1]))
    order = {"function": "unhurried", "count": 2, "devices": 1, "index": index, "k": k, "out": out}
    order |= {"workdir": f"{out}/run", "seconds": seconds, "xla_flags": "", "limits": LIMITS}
    order |= {"address": f"127.0.0.1:{port.read_text()}", "host_timeout_seconds": TIMEOUT}
    with Path(out, f"{index}.txt").open("w") as printed:
        command, env = [sys.executable, str(WORKER), json.dumps(order)], {"JAX_PLATFORMS": "cpu"}
        return subprocess.Popen(command, stdout=printed, stderr=printed, env=os.environ | env)


def compute(seconds: float) -> None:
    """Keeps a core busy."""
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        sum(range(10_000))


if __name__ == "__main__":
    main()
