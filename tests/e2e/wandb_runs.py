"""Compares the offline runs of Weights & Biases in a work directory with its metrics.jsonl.

    python tests/e2e/wandb_runs.py WORKDIR

The page trainer/CALLBACKS.md made them; CI runs this where wandb is installed."""

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from wandb.proto.wandb_internal_pb2 import Record

HEADER, BLOCK = 7, 32768  # of LevelDB's log format, in which W&B writes protos; its own header has 7 bytes as well


def records(path: Path) -> Iterator[bytes]:
    """The records of a log. One may be in several parts, of which the last has type 1 (complete) or 4 (last)."""
    data, at, parts = path.read_bytes(), HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):
            yield parts
            parts = b""


def logged(path: Path) -> Iterator[dict[str, float]]:
    """The points of a run, by name, without W&B's own."""
    for record in map(Record.FromString, records(path)):
        if record.WhichOneof("record_type") == "history":
            point = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            yield {name: value for name, value in point.items() if not name.startswith("_")}


def expected(workdir: Path) -> Iterator[dict[str, float]]:
    """The lines of metrics.jsonl, as the callback names their values."""
    for run in ("train", "eval"):
        for line in (workdir / run / "metrics.jsonl").read_text().splitlines():
            values = {name: value for name, value in json.loads(line).items() if name not in ("step", "time")}
            named = {name if name.startswith("speed/") else f"{run}/{name}": value for name, value in values.items()}
            yield {"step": json.loads(line)["step"], **named}


def main(workdir: Path) -> None:
    """Exits with a message unless both have the same points, in runs of one id."""
    paths = sorted(workdir.glob("wandb/offline-run-*/*.wandb"))
    assert {path.name for path in paths} == {f"run-{(workdir / 'wandb_id').read_text()}.wandb"}, paths
    points = [point for path in paths for point in logged(path)]
    ours = list(expected(workdir))

    def key(point: dict[str, float]) -> str:
        return json.dumps({name: f"{value:.6g}" for name, value in point.items()}, sort_keys=True)

    missing = {key(point) for point in ours} ^ {key(point) for point in points}
    if missing or len(points) != len(ours):
        sys.exit(f"{len(points)} points in W&B, {len(ours)} in metrics.jsonl; only in one: {sorted(missing)[:4]}")
    print(f"{len(points)} points in {len(paths)} runs of W&B are those of metrics.jsonl")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
