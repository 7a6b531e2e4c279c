"""All thirty kills, printed as a table: .ci/sweep. Exits 1 if one of them lost, changed or did anything twice."""

import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from fake_gcs.server import Server, start
from kills import KILLS, NUM_SHARDS, InBucket, Kill, OnDisk, Outcome, Place, convert, digests, strike

from converters.digits_raw import write_raw

BUCKET = "sweep"


def main() -> None:
    """Prints a row a kill, then the sums by stage."""
    with tempfile.TemporaryDirectory() as scratch:
        raw = Path(scratch, "raw")
        write_raw(raw)
        Path(scratch, "gcs").mkdir()
        with start(Path(scratch, "gcs")) as server:
            server.make_bucket(BUCKET)
            for file in raw.iterdir():
                server.write(BUCKET, f"raw/{file.name}", file.read_bytes())
            sys.exit(1 if sweep(raw, Path(scratch), server) else 0)


def sweep(raw: Path, scratch: Path, server: Server) -> int:
    """The number of kills that did not end well."""
    reference = OnDisk(str(scratch / "reference"))
    status, output = convert(str(raw), reference)
    assert status == 0, output
    expected, begun, failed = digests(reference), time.monotonic(), 0
    sums: dict[str, list[tuple[Outcome, bool]]] = defaultdict(list)
    print("| stage | killed | on | processes | shards whole | with receipt | sent again | digests |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for number, kill in enumerate(KILLS):
        place: Place = OnDisk(str(scratch / f"out{number}"))
        if kill.on == "bucket":
            place = InBucket(server, BUCKET, f"out{number}")
        outcome = strike(kill, str(raw) if kill.on == "disk" else f"gs://{BUCKET}/raw", place)
        problems = outcome.problems(expected)
        failed += bool(problems)
        sums[kill.stage].append((outcome, kill.on == "bucket"))
        print(_row(kill, outcome, problems), flush=True)
    print("\n| stage | kills | shards finished before | kept as they were | sent again |")
    print("| --- | --- | --- | --- | --- |")
    for stage, outcomes in sums.items():
        finished = sum(len(outcome.finished) for outcome, _ in outcomes)
        kept = finished - sum(len(outcome.rewritten) for outcome, _ in outcomes)
        sent = sum(outcome.sent[name] for outcome, counted in outcomes if counted for name in outcome.finished)
        print(f"| {stage} | {len(outcomes)} | {finished} | {kept} | {sent} |")
    seconds = time.monotonic() - begun
    print(f"\n{len(KILLS)} kills, {failed} did not end well; {seconds:.0f} s on {os.cpu_count()} cores.")
    return failed


def _row(kill: Kill, outcome: Outcome, problems: list[str]) -> str:
    whole, finished = (f"{len(names)} of {NUM_SHARDS}" for names in (outcome.shards, outcome.finished))
    again = "-"
    if kill.on == "bucket":
        counts = [sum(outcome.sent[name] for name in names) for names in (outcome.finished, outcome.shards)]
        again = f"{counts[0]} finished, {counts[1] - counts[0]} without receipt"
    place = f"{kill.moment} | {kill.on} | {kill.processes}"
    return f"| {kill.stage} | {place} | {whole} | {finished} | {again} | {'; '.join(problems) or 'equal'} |"


if __name__ == "__main__":
    main()
