"""One changed bit, or a cut, in what a conversion writes for itself: is any change of a value believed by what follows?

Conversions run in this process, without Beam."""

import contextlib
import io
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from beam_jobs.converter import ConversionJob
from beam_jobs.split.commit import Verdict
from pipeline.commands import verify
from pipeline.errors import InfeedError

FILES = {
    "receipt": "_shards/train-00001-of-00003.json",
    "claim": "_shards/train.plan.json",
    "ledger": "_rejects/train.jsonl",
    "verdict": "_shards/train.verdict.of-a-run.json",
}

Convert = Callable[[Path, bool], None]  # (output directory, --verify-existing)


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
        made.append(
            Mutation(
                file,
                at,
                None if chosen.random() < 0.2 else chosen.randrange(8),
                chosen.random() < 0.5,
            )
        )
    return made


def write_verdict(out: Path) -> None:
    """One that its launcher has not fetched."""
    summary = {"rejected": 1, "warnings": ["a warning"]}
    Verdict("of-a-run", "train", True, "17 records", summary, at=0.0).write(_job(out))


def _job(out: Path) -> ConversionJob:
    return ConversionJob(None, (), str(out), run_id="of-a-run")


def contents(out: Path) -> dict[str, object]:
    """Name -> values or bytes of everything that equal conversions publish, or keep for later runs."""
    files = [
        path for path in sorted(out.rglob("*")) if path.is_file() and path.parent.name != "_summary"
    ]
    return {str(path.relative_to(out)): _values(path.read_bytes()) for path in files}


def problem(mutation: Mutation, intact: Path, place: Path, convert: Convert) -> str:
    """What is wrong with the reaction to a mutation; "" if it was noticed, changed no value, or did no harm."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(intact, place)
    path = place / FILES[mutation.file]
    before, after = path.read_bytes(), mutation.of(path.read_bytes())
    path.write_bytes(after)
    if mutation.before_manifest:
        (place / "manifest.json").unlink()
    with contextlib.redirect_stdout(io.StringIO()):
        if _values(after) != _values(before) and _is_believed(mutation, place):
            return "it was believed"
        path.write_bytes(after)  # a verdict is gone once it is fetched
        try:
            convert(place, mutation.at % 5 == 0)
        except InfeedError as e:
            return f"the next run was refused: {e}"
        if verify.main([str(place)]):
            return "verify finds damage after the next run"
    expected, found = contents(intact), contents(place)
    del expected[FILES["verdict"]]
    return (
        ""
        if found == expected
        else f"other files: {[name for name in expected if found.get(name) != expected[name]]}"
    )


def _is_believed(mutation: Mutation, place: Path) -> bool:
    """By those who read the file before another run does."""
    if mutation.file == "ledger" and not mutation.before_manifest:
        return verify.main([str(place)]) == 0
    if mutation.file == "verdict":
        with contextlib.suppress(InfeedError):
            return Verdict.fetch(_job(place), "train") is not None
    return False


def _values(data: bytes) -> object:
    """Of JSON, whatever stands between them; else the bytes."""
    try:
        return [json.loads(line) for line in data.splitlines()]
    except ValueError:
        return data
