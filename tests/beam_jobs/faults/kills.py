"""Thirty kills of a real conversion, placed by stage, and what each of them costs. CI runs some, .ci/sweep all.

A kill is SIGKILL of the whole process group at a moment that sitecustomize places; then the same command runs again.
pytest has this folder on its path."""

import hashlib
import os
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fake_gcs.server import Server

ROOT = Path(__file__).parents[3]
NUM_SHARDS = 5  # of 296 KB
# A forked process loads it here. Debian's Python has one of its own, which the server that forks has imported.
FAULTS = "import sys; sys.modules.pop('sitecustomize', None); import sitecustomize; "
CONVERT = FAULTS + "from converters.imagenet_to_gcs import main; "
CONVERT += "from beam_jobs.launch import exit_with; exit_with(main)"
OWN_GROUP = "import os; os.setsid(); "
# of a resumable upload: the least that GCS takes, so that a shard has more than one
PIECE_BYTES = 256 * 1024


# (["-c", program, ...], environment)
Run = Callable[[list[str], Mapping[str, str]], tuple[int, str]]


class Kill(NamedTuple):
    """One kill; `on` is "disk" or "bucket", for raw data and shards alike."""

    stage: str
    moment: str
    at: str
    on: str
    processes: int
    in_ci: bool = False


BEFORE_SHARDS = [
    Kill("scan", "first class", "scan:n00000000", "disk", 1),
    Kill("scan", "sixth class", "scan:n00000005", "disk", 2),
    Kill("scan", "sixth class", "scan:n00000005", "bucket", 1, True),
    Kill("scan", "last class", "scan:n00000009", "bucket", 2),
    Kill("assign", "first bucket", "assign:0", "disk", 1, True),
    Kill("assign", "fifth bucket", "assign:4", "disk", 2),
    Kill("assign", "claim written", "created:train.plan.json", "disk", 2),
    Kill("assign", "claim written", "created:train.plan.json", "bucket", 1),
    Kill("assign", "last bucket", "assign:7", "bucket", 1),
]
SHARDS = [
    Kill("mid-shard", "first shard, first record", "half:train-00000-of-*5", "disk", 1),
    Kill("mid-shard", "third shard, at 150 KB", "half:train-00002-of-*5@150000", "disk", 1),
    Kill("mid-shard", "last shard, at 280 KB", "half:train-00004-of-*5@280000", "disk", 2),
    Kill("mid-shard", "first shard, at 150 KB", "half:train-00000-of-*5@150000", "bucket", 1),
    Kill("mid-shard", "third shard, its first piece sent", "half:train-00002-of-*5@280000", "bucket", 1, True),
    Kill("mid-shard", "last shard, its first piece sent", "half:train-00004-of-*5@280000", "bucket", 2),
    Kill("shard to receipt", "first shard", "after:train-00000-of-*5", "disk", 1),
    Kill("shard to receipt", "third shard", "after:train-00002-of-*5", "disk", 2),
    Kill("shard to receipt", "receipt half written", "half:train-00003-of-*.json", "disk", 1, True),
    Kill("shard to receipt", "third shard", "after:train-00002-of-*5", "bucket", 1),
    Kill("shard to receipt", "last shard", "after:train-00004-of-*5", "bucket", 2),
]  # fmt: skip
COMMIT = [
    Kill("commit", "last receipt written", "after:train-00004-of-*.json", "disk", 1),
    Kill("commit", "index half written", "half:train.npy", "disk", 1),
    Kill("commit", "ledger written", "after:train.jsonl", "bucket", 1),
    Kill("commit", "index written", "after:train.npy", "disk", 2),
    Kill("commit", "index written", "after:train.npy", "bucket", 1),
    Kill("commit", "between the sidecars", "before:dataset_info.json", "disk", 1),
    Kill("commit", "sidecars written", "after:dataset_info.json", "bucket", 2, True),
    Kill("commit", "manifest half written", "half:manifest.json", "disk", 1, True),
    Kill("commit", "manifest written", "after:manifest.json", "bucket", 1),
    Kill("commit", "before the verdict", "before:train.verdict.*.json", "disk", 2),
]
KILLS = (*BEFORE_SHARDS, *SHARDS, *COMMIT)


@dataclass(frozen=True)
class OnDisk:
    """A directory of shards, seen without our own code."""

    path: str
    env = {}  # noqa: RUF012

    def files(self) -> Mapping[str, int]:
        """Name -> identity (inode or generation), which a file that is written again does not keep."""
        root = Path(self.path)
        return {
            str(file.relative_to(root)): file.stat().st_ino
            for file in sorted(root.rglob("*"))
            if file.is_file()
        }

    def read(self, name: str) -> bytes:
        return Path(self.path, name).read_bytes()

    def uploads(self, shard: str) -> int:
        """How often a shard was begun to be written since `forget`; a disk does not count."""
        return 0

    def forget(self) -> None:
        pass


@dataclass(frozen=True)
class InBucket:
    """A prefix of a bucket of the tests' server."""

    server: Server
    bucket: str
    prefix: str

    @property
    def path(self) -> str:
        return f"gs://{self.bucket}/{self.prefix}"

    @property
    def env(self) -> Mapping[str, str]:
        return {**self.server.env, "PIECE_BYTES": str(PIECE_BYTES)}

    def files(self) -> Mapping[str, int]:
        found = self.server.objects(self.bucket, f"{self.prefix}/")
        return {
            name.removeprefix(f"{self.prefix}/"): there.generation for name, there in found.items()
        }

    def read(self, name: str) -> bytes:
        return self.server.read(self.bucket, f"{self.prefix}/{name}")

    def uploads(self, shard: str) -> int:
        return len(
            self.server.requests(rf"POST /upload.*name={self.prefix}/{re.escape(shard)}(&|$)")
        )

    def forget(self) -> None:
        self.server.reset()


Place = OnDisk | InBucket


class Outcome(NamedTuple):
    """What a kill left, and what the same command made of it."""

    status: int  # of the killed run
    shards: tuple[str, ...]  # there whole, when it was killed
    finished: tuple[str, ...]  # of these, the ones with a receipt
    committed: bool
    again: tuple[int, str]  # status and output of the second run
    rewritten: tuple[str, ...]  # finished shards that are other files now
    sent: Mapping[str, int]  # shard -> how often the second run began to upload it
    digests: Mapping[str, str]
    left: tuple[str, ...]  # temporary files

    def problems(self, expected: Mapping[str, str]) -> list[str]:
        """What is not as it should be; [] if all is well."""
        return [
            *(
                [f"the run was not killed: status {self.status}"]
                if self.status != -signal.SIGKILL
                else []
            ),
            *([f"the second run failed: {self.again}"] if self.again[0] else []),
            *([f"written again: {self.rewritten}"] if self.rewritten else []),
            *([f"sent again: {name}" for name in self.finished if self.sent[name]]),
            *([f"sent {count} times: {name}" for name, count in self.sent.items() if count > 1]),
            *[
                f"other bytes: {name}"
                for name, _ in set(expected.items()) ^ set(self.digests.items())
            ],
            *([f"left behind: {self.left}"] if self.left else []),
        ]


def convert(
    raw: str, place: Place, run: Run, processes: int = 1, kill_at: str = ""
) -> tuple[int, str]:
    """(status, output) of the real command in a process group of its own."""
    flags = [
        f"--raw-data-dir={raw}",
        f"--gcs-output-path={place.path}",
        f"--label-file={raw}/synsets.txt",
    ]
    flags += [
        "--splits=train",
        f"--num-train-shards={NUM_SHARDS}",
        f"--local-processes={processes}",
    ]
    faults = {"KILL_AT": kill_at, "KILL_ROOT": str(ROOT), "PYTHONPATH": str(Path(__file__).parent)}
    return run(["-c", OWN_GROUP + CONVERT, *flags], {**os.environ, **place.env, **faults})


def digests(place: Place) -> dict[str, str]:
    """Name -> sha256 of all that has to be the same in equal conversions."""
    names = [
        name
        for name in place.files()
        if name == "manifest.json"
        or name.startswith("_index/")
        or ("/" not in name and "-of-" in name)
    ]
    return {name: hashlib.sha256(place.read(name)).hexdigest() for name in names}


def strike(kill: Kill, raw: str, place: Place, run: Run) -> Outcome:
    """Kills a conversion into an empty place, and runs the same command again, in one process."""
    status, _ = convert(raw, place, run, kill.processes, kill.at)
    before = place.files()
    shards = tuple(name for name in before if name.startswith("train-"))
    finished = tuple(name for name in shards if f"_shards/{name}.json" in before)
    place.forget()
    again = convert(raw, place, run)
    after = place.files()
    return Outcome(
        status=status,
        shards=shards,
        finished=finished,
        committed="manifest.json" in before,
        again=again,
        rewritten=tuple(name for name in finished if after.get(name) != before[name]),
        sent={name: place.uploads(name) for name in after if name.startswith("train-")},
        digests=digests(place),
        left=tuple(name for name in after if name.endswith(".tmp") or "verdict" in name),
    )
