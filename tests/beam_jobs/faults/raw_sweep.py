"""Sixty-three kills while shards are being written, at random places; a third of them finds other raw data afterwards.

.ci/sweep runs them. Exits 1 if a split was ever a mixture, or not that of a conversion that nobody disturbed. SEED and
COUNT in the environment choose others."""

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from fake_gcs.server import Server, start
from kills import NUM_SHARDS, InBucket, Kill, OnDisk, Place, convert, digests, strike

from converters.digits_raw import write_raw

BUCKET, TAR = "sweep", "ILSVRC2012_img_train.tar"
SHARD_BYTES = 290_000


@dataclass(frozen=True)
class Raw:
    """The raw data, on a disk and in a bucket, and the tar as it is and as it might be."""

    directory: Path
    server: Server
    tars: dict[str, bytes]  # "old", "new": of one size

    def put(self, version: str, on: str) -> None:
        """The tar, with new times."""
        if on == "disk":
            (self.directory / TAR).write_bytes(self.tars[version])
        else:
            self.server.write(BUCKET, f"raw/{TAR}", self.tars[version])

    def path(self, on: str) -> str:
        return str(self.directory) if on == "disk" else f"gs://{BUCKET}/raw"


def random_kill(chosen: random.Random) -> Kill:
    """While a shard is written, between it and its receipt, or in the middle of its receipt."""
    shard, processes = chosen.randrange(NUM_SHARDS), chosen.choice((1, 2))
    on = chosen.choice(("disk", "disk", "bucket"))
    at = chosen.choice(
        (
            f"half:train-{shard:05d}-of-*5@{chosen.randrange(SHARD_BYTES)}",
            f"after:train-{shard:05d}-of-*5",
            f"half:train-{shard:05d}-of-*.json",
            f"after:train-{shard:05d}-of-*.json",
        )
    )
    return Kill("shards", at, at, on, processes)


def changed_problems(kill: Kill, raw: Raw, place: Place, expected: dict[str, dict[str, str]]) -> tuple[str, list[str]]:
    """(what happened, what is not as it should be) where the tar is another one after the kill."""
    status, _ = convert(raw.path(kill.on), place, kill.processes, kill.at)
    problems = [] if status == -signal.SIGKILL else [f"the run was not killed: status {status}"]
    before = place.files()
    raw.put("new", kill.on)
    status, output = convert(raw.path(kill.on), place)
    if status == 0:
        what, version = "nothing was finished, the new converted", "new"
    else:
        what, version = "refused", "old"
        untouched = {name: there for name, there in place.files().items() if ".plan." not in name} == {
            name: there for name, there in before.items() if ".plan." not in name
        }
        one_line = status == 2 and output.count("error: ") == 1 and f"{TAR} has changed" in output
        problems += [] if one_line else [f"refused otherwise: {status} {output}"]
        problems += [] if untouched else ["a refused run wrote"]
        raw.put("old", kill.on)
        flags = ["--verify-existing"] if kill.on == "disk" else []
        status, output = convert(raw.path(kill.on), place, more=flags)
        problems += [f"the old put back: {status} {output}"] if status else []
    problems += [] if digests(place) == expected[version] else [f"not the digests of the {version} raw data"]
    raw.put("old", kill.on)
    return what, problems


def sweep(raw: Raw, scratch: Path, count: int, seed: int) -> int:
    """The number of kills that did not end well."""
    expected, chosen, failed, seen = {}, random.Random(seed), 0, Counter()
    for version in ("new", "old"):
        raw.put(version, "disk")
        place = OnDisk(str(scratch / version))
        status, output = convert(str(raw.directory), place)
        assert status == 0, output
        expected[version] = digests(place)
    for file in raw.directory.iterdir():
        raw.server.write(BUCKET, f"raw/{file.name}", file.read_bytes())
    for number in range(count):
        kill = random_kill(chosen)
        on_disk = kill.on == "disk"
        place = OnDisk(str(scratch / f"{number}")) if on_disk else InBucket(raw.server, BUCKET, f"{number}")
        if number % 3:
            what, problems = "same raw data", strike(kill, raw.path(kill.on), place).problems(expected["old"])
        else:
            what, problems = changed_problems(kill, raw, place, expected)
        seen[f"{what}, {kill.on}"] += 1
        failed += bool(problems)
        print(f"{number} {kill.at}, {kill.on}, {kill.processes}: {what}; {'; '.join(problems) or 'equal'}", flush=True)
    print(f"{count} kills with seed {seed}, {failed} did not end well: {dict(seen)}")
    return failed


def main() -> None:
    """Prints a line for each kill, and the sums."""
    seed, count, begun = int(os.environ.get("SEED", "20")), int(os.environ.get("COUNT", "63")), time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        scratch = Path(made)
        write_raw(scratch / "raw")
        (scratch / "gcs").mkdir()
        old = (scratch / "raw" / TAR).read_bytes()
        new = old.replace(b"JFIF\0\1\1\0\0\1", b"JFIF\0\1\1\0\0\2")
        assert new != old
        with start(scratch / "gcs") as server:
            server.make_bucket(BUCKET)
            failed = sweep(Raw(scratch / "raw", server, {"old": old, "new": new}), scratch, count, seed)
    print(f"{time.monotonic() - begun:.0f} s.")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
