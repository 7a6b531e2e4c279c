"""kill -9 while a table is converted from Parquet: the same command again ends with the same bytes."""

import hashlib
import os
import signal
from pathlib import Path

import pyarrow as pa
import pytest
from kills import FAULTS, OWN_GROUP, ROOT
from pyarrow import parquet
from sweep import SWEEP

CONVERT = FAULTS + "from converters.table_to_gcs import main; "
CONVERT += "from beam_jobs.launch import exit_with; exit_with(main)"
KILLS = (  # see sitecustomize
    "half:train.*-0",
    "after:train-00001-of-*.json",
    "after:train.*-0",
    "created:train.plan.json",
    "half:train-00001-of-*3@2000",
    "after:train-00000-of-*3",
    "half:train-00002-of-*.json",
    "before:columns.json",
    "after:columns.json",
    "half:manifest.json",
)


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """Three tables in row groups of 40 rows."""
    directory = tmp_path_factory.mktemp("tables")
    for part in range(3):
        rows = range(100 * part, 100 * part + 100)
        table = {
            "x": [i / 7 for i in rows],
            "city": ["ab"[i % 2] for i in rows],
            "note": [f"row {i}" for i in rows],
        }
        parquet.write_table(pa.table(table), directory / f"train-{part}.parquet", row_group_size=40)
    return directory


@pytest.fixture(scope="module")
def convert(fork_server, tmp_path_factory, raw):
    """convert(out, kill_at, processes) -> (exit code, all that the command printed)."""

    def converted(out, kill_at="", processes=1):
        flags = [
            f"--raw-data-dir={raw}",
            f"--output={out}",
            "--num-train-shards=3",
            f"--local-processes={processes}",
        ]
        env = {
            "KILL_AT": kill_at,
            "KILL_ROOT": str(ROOT),
            "PYTHONPATH": str(ROOT / "tests/beam_jobs/faults"),
        }
        printed = tmp_path_factory.mktemp("printed") / "printed"
        return fork_server.run(
            ["-c", OWN_GROUP + CONVERT, *flags], printed, {**os.environ, **env}, timeout=120
        )

    return converted


def digests(out):
    """Of all that has to be the same in equal conversions."""
    paths = [
        *out.glob("train-*"),
        *out.glob("_index/*"),
        out / "_summary/columns.json",
        out / "manifest.json",
    ]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.fixture(scope="module")
def expected(convert, tmp_path_factory):
    """The digests of a conversion that nobody killed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    code, printed = convert(out)
    assert code == 0, printed
    return digests(out)


@pytest.mark.parametrize("kill_at", KILLS if SWEEP else KILLS[:2])
def test_a_table_that_was_killed_resumes_to_the_same_bytes(convert, expected, tmp_path, kill_at):
    out = tmp_path / "out"
    code, printed = convert(out, kill_at)
    assert code == -signal.SIGKILL, printed
    code, printed = convert(out)
    assert code == 0, printed
    assert digests(out) == expected
    assert [
        path
        for path in Path(out).rglob("*")
        if path.name.endswith(".tmp") or path.parent.name == "_scratch"
    ] == []


@pytest.mark.slow
def test_two_processes_write_the_same_bytes_of_a_parquet_table(convert, expected, tmp_path):
    code, printed = convert(tmp_path / "out", processes=2)
    assert code == 0, printed
    assert digests(tmp_path / "out") == expected
