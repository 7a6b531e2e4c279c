"""What becomes of five hundred damaged or odd images, by kind, as a table: .ci/sweep.

Exits 1 if one of them ended otherwise than its kind says, or if memory grew beyond its bound; a crash ends it, too."""

import contextlib
import logging
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from odd_images import KINDS, Kind, verdicts
from pictures import FORMATS

from pipeline.ops import DecodeCentralCrop, DecodeRandomResizedCrop, DecodeResize

WINDOW = "random crop"
OPS = {
    "resized": DecodeResize(size=(64, 64)),
    WINDOW: DecodeRandomResizedCrop(size=(64, 64)),
    "grey": DecodeCentralCrop(size=(64, 64), resize_short=72, channels=1),
}
GOOD = [data for data, _ in FORMATS.values()]
BOUND_MIB = 2048


def main() -> None:
    """Prints a row a kind, then the memory and what was on stderr."""
    logging.getLogger("pipeline").setLevel(logging.ERROR)
    images = {name: list(kind.images()) for name, kind in KINDS.items()}
    listed = [image for each in images.values() for image in each]
    wrong, at, begun = 0, 0, time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        for number, op in enumerate(OPS.values()):
            verdicts(GOOD, Path(scratch, f"good{number}"), op)
        idle = _kib("VmRSS")
        with _stderr(Path(scratch, "stderr")):
            found = {name: verdicts(listed, Path(scratch, name), op) for name, op in OPS.items()}
        lines = Path(scratch, "stderr").read_text(errors="replace").splitlines()
    peak = (_kib("VmHWM") - idle) / 1024
    print(f"| images/errors: kind | {' | '.join(OPS)} | an error |\n|{' --- |' * (2 + len(OPS))}")
    for name, kind in KINDS.items():
        wrong += _row(name, kind, {op: reasons[at : at + len(images[name])] for op, reasons in found.items()})
        at += len(images[name])
    print(f"\n{len(listed)} images, {len(OPS)} ops, {wrong} other than they should; {time.monotonic() - begun:.0f} s.")
    print(f"Peak memory over idle: {peak:.0f} MiB of {BOUND_MIB} allowed. On stderr, one to ten a record:")
    for line, count in Counter(re.sub(r"0x\w+|\d+", "N", line) for line in lines).items():
        print(f"- {count} x {line}")
    sys.exit(1 if wrong or peak > BOUND_MIB else 0)


def _row(name: str, kind: Kind, found: dict[str, list[str | None]]) -> int:
    """Prints what became of a kind; returns how many are other than they should."""
    wrong, counts, said = 0, [], ""
    for op, reasons in found.items():
        errors = [reason for reason in reasons if reason is not None]
        either = kind.either or not kind.error or (kind.window and op == WINDOW)
        strange = [reason for reason in errors if not kind.error or not re.search(kind.error, reason)]
        wrong += len(strange) + (0 if either else len(reasons) - len(errors))
        counts.append(f"{len(reasons) - len(errors)}/{len(errors)}")
        said = next(iter([*strange, *errors]), "").partition("): ")[2][:90] or said
    print(f"| {name} | {' | '.join(counts)} | {said}{' **WRONG**' * bool(wrong)} |", flush=True)
    return wrong


def _kib(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) if found else 0


@contextlib.contextmanager
def _stderr(path: Path) -> Iterator[None]:
    """What libraries write to stderr goes to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


if __name__ == "__main__":
    main()
