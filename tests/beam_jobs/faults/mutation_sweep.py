"""A thousand mutations of receipts, claims, ledgers and verdicts: .ci/sweep. Exits 1 if one was believed.

SEED and COUNT in the environment choose others."""

import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from file_mutations import FILES, mutations, problem, write_verdict
from raw_data.imagenet import RawImagenet
from stages import Stages

from beam_jobs import graph


def main() -> None:
    """Prints what went wrong, and the counts."""
    seed, count = int(os.environ.get("SEED", "20")), int(os.environ.get("COUNT", "1000"))
    graph.pipeline_of = Stages
    begun, problems, seen = time.monotonic(), 0, Counter()
    with tempfile.TemporaryDirectory() as scratch:
        raw, out = RawImagenet(Path(scratch, "raw")), Path(scratch, "out")
        raw.train["n00000001"]["n00000001_3.JPEG"] = b"no image"
        raw.write()

        def convert(place: Path, verify_existing: bool) -> None:
            flags = ["--splits=train", "--num-train-shards=3", "--max-bad-records=1"]
            raw.convert(place, *flags, *["--verify-existing"] * verify_existing)

        convert(out, False)
        write_verdict(out)
        for mutation in mutations(out, count, seed):
            seen[mutation.file] += 1
            if what := problem(mutation, out, Path(scratch, "place"), convert):
                problems += 1
                print(f"{mutation}: {what}", flush=True)
    each = ", ".join(f"{seen[file]} of a {file}" for file in FILES)
    print(f"{count} mutations with seed {seed} ({each}): {problems} believed; {time.monotonic() - begun:.0f} s.")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
