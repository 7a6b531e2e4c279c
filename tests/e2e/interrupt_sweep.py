"""Ctrl-C at random moments, from the start of a process to its end, alone and on two hosts: .ci/sweep.

    python tests/e2e/interrupt_sweep.py [--strikes 20] [--seed 0]

The same command is interrupted again and again until its training is done; what it then has must be what an undisturbed
training has. Whole processes, with TensorFlow: its threads are what aborted. Exits 1 if an end was wrong."""

import argparse
import contextlib
import json
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from converters import digits_raw, imagenet_to_gcs

STEPS = 400
# Frames of a process that SIGINT meets before our first line is done.
BEFORE_US = re.compile(r'File "(<frozen|.*lib/python3|.*(trainer|pipeline)/(__init__|__main__|ctrl_c)\.py)')
DEADLINE_SECONDS = 300.0


@dataclass(frozen=True)
class End:
    """How one process ended, and how long after the signal."""

    code: int
    printed: str
    seconds: float = 0.0

    @property
    def before_us(self) -> bool:
        """Whether Python itself, which had not come to our first line, took the signal."""
        frames = [line for line in self.printed.splitlines() if line.lstrip().startswith("File ")]
        return self.code == -signal.SIGINT and bool(frames) and all(BEFORE_US.search(frame) for frame in frames)


class Sweep:
    """Strikes at a training of `hosts` processes; problems: what was not as it must be."""

    def __init__(self, data: Path, scratch: Path, hosts: int, rng: random.Random) -> None:
        self.data, self.scratch, self.hosts, self._rng = data, scratch, hosts, rng
        self.problems: list[str] = []
        self._runs = 0
        begun = time.monotonic()
        self._expected = self._finished("undisturbed")
        self._seconds = time.monotonic() - begun

    def start(self, workdir: Path) -> list[subprocess.Popen[bytes]]:
        """The processes of the command."""
        command = [sys.executable, "-m", "trainer", "digits", f"--data-dir={self.data}", f"--workdir={workdir}"]
        command += [f"--max-steps={STEPS}", "--iterations-per-loop=5", "--checkpoint-every-steps=100", "--platform=cpu"]
        if self.hosts > 1:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            command += [f"--coordinator-address=127.0.0.1:{port}", f"--num-processes={self.hosts}"]
            command += ["--connect-seconds=60"]  # where one ends before they have met, the other waits so long
        self._runs += 1
        processes = []
        for i in range(self.hosts):
            own = [f"--process-id={i}"] if self.hosts > 1 else []
            with self._printed(i).open("wb") as out:
                processes.append(subprocess.Popen([*command, *own], stdout=out, stderr=out))
        return processes

    def _printed(self, host: int) -> Path:
        return self.scratch / f"{self.hosts}-{self._runs}-{host}.txt"

    def end(self, processes: list[subprocess.Popen[bytes]], since: float) -> list[End]:
        """How they end; one that does not is a problem, and killed."""
        ends = []
        for host, process in enumerate(processes):
            try:
                process.wait(DEADLINE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            printed = self._printed(host).read_text(errors="replace")
            ends.append(End(process.returncode, printed, time.monotonic() - since))
        return ends

    def _finished(self, name: str) -> object:
        """What a training has that nobody interrupts any more."""
        workdir = self.scratch / f"{name}-{self.hosts}"
        ends = self.end(self.start(workdir), time.monotonic())
        assert [end.code for end in ends] == [0] * self.hosts, ends
        lines = [json.loads(line) for line in (workdir / "train/metrics.jsonl").read_text().splitlines()]
        for line in lines:
            for name in [name for name in line if name == "time" or name.startswith("speed/")]:
                del line[name]
        page = json.loads((workdir / f"checkpoints/{STEPS}/contents/metadata").read_text())
        evaluated = json.loads((workdir / "eval_result.json").read_text())
        del evaluated["seconds"]
        return page["arrays"], page["input"], lines, evaluated

    def strike(self, number: int, name: str, together: bool) -> bool:
        """Interrupts the command once; whether its training is done."""
        workdir = self.scratch / f"{name}-{self.hosts}"
        before, processes = newest(workdir), self.start(workdir)
        moment, host = self._rng.uniform(0, self._seconds), self._rng.randrange(self.hosts)
        with contextlib.suppress(subprocess.TimeoutExpired):
            processes[host].wait(moment)
        for process in processes if together else [processes[host]]:
            process.send_signal(signal.SIGINT)
        ends, after = self.end(processes, time.monotonic()), newest(workdir)
        wrong = list(self._wrong(ends, before, after, struck=None if together else host))
        self.problems += [f"{name}: {problem}\n{ends}" for problem in wrong]
        codes = ", ".join(str(end.code) for end in ends)
        told = "all" if together else f"host {host}"
        print(
            f"| {self.hosts} | {number} | {told} | {moment:.2f} | {codes} | {max(end.seconds for end in ends):.1f} | "
            f"{before} | {after} | {'; '.join(wrong) or 'as it must be'} |",
            flush=True,
        )
        return after == STEPS

    def _wrong(self, ends: list[End], before: int, after: int, struck: int | None) -> list[str]:
        wrong = [f"code {end.code}" for host, end in enumerate(ends) if not self._allowed(end, ends, host, struck)]
        wrong += ["a traceback" for end in ends if "Traceback" in end.printed and not end.before_us]
        saved = {int(step) for end in ends for step in re.findall(r"; step (\d+) is saved", end.printed)}
        if saved and saved != {after}:
            wrong.append(f"steps {sorted(saved)} are said to be saved")
        if after < before:
            wrong.append("a checkpoint is lost")
        return wrong

    def _allowed(self, end: End, ends: list[End], host: int, struck: int | None) -> bool:
        if end.code == 130 or end.before_us or all(each.code == 0 for each in ends):
            return True
        alone = struck is not None and host != struck
        return alone and (end.code in (0, 2, 3))  # the other one was never there, or had ended

    def compare(self, name: str) -> None:
        """Lets the training end, and compares it with the undisturbed one."""
        if self._finished(name) != self._expected:
            self.problems.append(f"{name}: the resumed training differs from the undisturbed one")


def newest(workdir: Path) -> int:
    """The step of the newest finished checkpoint; 0 without one."""
    return max([int(path.parent.name) for path in workdir.glob("checkpoints/*/commit_success.txt")], default=0)


def main() -> int:
    """Prints a row a strike; the number of problems."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strikes", type=int, default=20, help="of one process, and of two")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2], help="numbers of processes")
    args = parser.parse_args()
    problems = []
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who is started in the background ignores it
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        raw, data = scratch / "raw", scratch / "data"
        digits_raw.write_raw(raw)
        given = [f"--raw-data-dir={raw}", f"--label-file={raw}/synsets.txt", "--target-shard-bytes=100KB"]
        imagenet_to_gcs.main([*given, f"--gcs-output-path={data}"])
        print("| hosts | strike | to | at second | codes | seconds to the end | step before | step after | end |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
        for hosts in args.hosts:
            sweep, runs = Sweep(data, scratch, hosts, random.Random(args.seed)), 0
            for number in range(args.strikes):
                if sweep.strike(number, f"run{runs}", together=number % 2 == 0):
                    sweep.compare(f"run{runs}")
                    runs += 1
            sweep.compare(f"run{runs}")
            problems += sweep.problems
    print("\n".join(problems))
    print(f"{args.strikes} strikes at each of {args.hosts}: {len(problems)} problems")
    return len(problems)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
