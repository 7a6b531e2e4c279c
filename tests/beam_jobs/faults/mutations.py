"""One changed bit, or a cut, in what a conversion writes for itself: is any change of a value believed by what follows?

pytest takes a few of them; mutation_sweep takes a thousand. Conversions run in this process, without Beam."""

import contextlib
import hashlib
import io
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from beam_jobs.receipts import parse_receipt
from beam_jobs.verdicts import Verdict
from pipeline import verify
from pipeline.shards.errors import InfeedError
from pipeline.shards.local import LocalStorage

SHARDS = 3
FILES = {
    "receipt": "_shards/train-00001-of-00003.json",
    "claim": "_shards/train.plan.json",
    "ledger": "_rejects/train.jsonl",
    "verdict": "_shards/train.verdict.of-a-run.json",
}

Convert = Callable[[Path, bool], None]  # (output directory, --verify_existing)


class Mutation(NamedTuple):
    """A byte of a file with one bit changed; or the file cut there, where bit is None."""

    file: str
    at: int
    bit: int | None
    before_manifest: bool  # the conversion was killed: there is no manifest yet

    def of(self, data: bytes) -> bytes:
        if self.bit is None:
            return data[: self.at]
        return data[: self.at] + bytes([data[self.at] ^ 1 << self.bit]) + data[self.at + 1 :]


def mutations(out: Path, count: int, seed: int) -> list[Mutation]:
    """As many of each file; a fifth of them cuts."""
    chosen, made = random.Random(seed), []
    for number in range(count):
        file = list(FILES)[number % len(FILES)]
        at = chosen.randrange((out / FILES[file]).stat().st_size)
        made.append(Mutation(file, at, None if chosen.random() < 0.2 else chosen.randrange(8), chosen.random() < 0.5))
    return made


def write_verdict(out: Path) -> None:
    """One that its launcher has not fetched."""
    Verdict("of-a-run", "train", True, "17 records", 1, ("a warning",), at=0.0).write(LocalStorage(), str(out))


def digests(out: Path) -> dict[str, str]:
    """Of everything that equal conversions have in common: what they publish, and what they keep for later runs."""
    names = [path for path in sorted(out.rglob("*")) if path.is_file() and path.parent.name != "_summary"]
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in names}


def problem(mutation: Mutation, intact: Path, place: Path, convert: Convert) -> str:
    """What is wrong with the reaction to a mutation; "" if it was noticed, changed no value, or did no harm."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(intact, place)
    path = place / FILES[mutation.file]
    data = path.read_bytes()
    path.write_bytes(mutation.of(data))
    if mutation.before_manifest:
        (place / "manifest.json").unlink()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        if mutation.file == "ledger" and not mutation.before_manifest and _values(mutation.of(data)) != _values(data):
            if verify.main([str(place)]) == 0:
                return "verify calls the ledger intact"
        try:
            if mutation.file == "verdict":
                fetched = Verdict.fetch(LocalStorage(), str(place), "train", "of-a-run")
                if fetched and _values(mutation.of(data)) != _values(data):
                    return "the verdict was believed"
                path.write_bytes(mutation.of(data))
            convert(place, mutation.at % 5 == 0)
        except InfeedError as e:
            if mutation.file != "verdict" or "\n" in str(e):
                return f"the next run was refused: {e}"
            path.write_bytes(mutation.of(data))
            convert(place, False)
        if verify.main([str(place)]):
            return "verify finds damage after the next run"
    expected = digests(intact)
    del expected[FILES["verdict"]]
    found = digests(place)
    if mutation.file == "claim" and found.get(FILES["claim"]) != expected[FILES["claim"]]:
        if _values(path.read_bytes()) == _values((intact / FILES["claim"]).read_bytes()):
            found[FILES["claim"]] = expected[FILES["claim"]]  # the same values, with another space between them
    if mutation.file == "receipt" and parse_receipt(path.read_bytes()) == parse_receipt(data):
        found[FILES["receipt"]] = expected[FILES["receipt"]]
    return "" if found == expected else f"other files: {set(expected.items()) ^ set(found.items())}"


def _values(data: bytes) -> object:
    try:
        return [json.loads(line) for line in data.splitlines()]
    except ValueError:
        return None
