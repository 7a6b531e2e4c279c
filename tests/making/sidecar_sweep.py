"""Many mutants of sidecars and indexes, printed as a table: .ci/sweep. Exits 1 if one was not noticed, or not repaired.

python tests/making/sidecar_sweep.py [mutants of each data set] [seed]"""

import itertools
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from raw_data.imagenet import RawImagenet
from raw_data.records import prepare_tfds
from raw_data.tables import RawTables
from sidecar_mutants import Judge, mutants
from stages import Stages

from beam_jobs import graph
from converters import tfds_to_gcs

TEXTS = ("--text-column=text", "--labels-column=about", "--max-bad-records=4", "--validation-fraction=0.3")


def main(count: int = 400, seed: int = 20) -> None:
    """Prints a row for each data set and kind of file."""
    graph.pipeline_of = Stages  # a conversion without Beam takes a tenth of the time
    begun, failed = time.monotonic(), 0
    print("| data set | file | mutants | noticed | refused | same meaning | failed |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name, (directory, convert) in _datasets(Path(scratch)).items():
            failed += _sweep(name, directory, convert, count, seed)
    print(f"\nseed {seed}: {failed} failed; {time.monotonic() - begun:.0f} s.")
    sys.exit(1 if failed else 0)


def _datasets(scratch: Path) -> dict:
    raw = RawImagenet(scratch / "raw").write()
    tables = RawTables(scratch / "tables").write_texts()
    prepare_tfds(scratch / "tfds")
    tiny = ["--dataset=tiny", f"--data-dir={scratch}/tfds", "--num-shards=train=3"]
    conversions = {
        "tpu": lambda *flags: raw.convert(scratch / "tpu", "--num-train-shards=3", *flags),
        "tfds": lambda *flags: raw.convert(scratch / "own", "--schema=tfds", "--num-train-shards=3", *flags),
        "texts": lambda *flags: tables.convert(scratch / "texts", *TEXTS, *flags),
        "re-sharded": lambda *flags: tfds_to_gcs.main([*tiny, f"--gcs-output-path={scratch}/tiny", *flags]),
    }
    directories = ("tpu", "own/imagenet2012/5.1.0", "texts", "tiny")
    for convert in conversions.values():
        convert()
    places = zip(conversions.items(), directories, strict=True)
    return {name: (scratch / directory, convert) for (name, convert), directory in places}


def _sweep(name: str, directory: Path, convert, count: int, seed: int) -> int:
    outcomes: dict[str, Counter] = {}
    judge = Judge(directory, convert)
    for mutant in itertools.islice(mutants(directory, seed), count):
        file = next(iter(mutant.files)).name
        counts = outcomes.setdefault(f"{file}{', signed' if len(mutant.files) > 1 else ''}", Counter())
        try:
            outcome, problem = judge.judge(mutant)
        except Exception as e:  # what would be a traceback
            outcome, problem = "noticed", f"{type(e).__name__}: {e}"
        counts[outcome] += 1
        if problem:
            counts["failed"] += 1
            print(f"{name}: {mutant}: {problem}", file=sys.stderr, flush=True)
    for file, counts in outcomes.items():
        kinds = [counts[kind] for kind in ("noticed", "refused", "same")]
        print(f"| {name} | {file} | {sum(kinds)} | {' | '.join(map(str, kinds))} | {counts['failed']} |", flush=True)
    return sum(counts["failed"] for counts in outcomes.values())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
