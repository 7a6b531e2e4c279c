"""kill -9 and Ctrl-C while tables are converted: the same command again ends with the same bytes."""

import hashlib
import json
import os
import signal
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from converted import records_of
from kills import FAULTS, OWN_GROUP, ROOT
from pyarrow import parquet
from sweep import SWEEP

CONVERT = FAULTS + "from converters.table_to_gcs import main; "
CONVERT += "from beam_jobs.launch import exit_with; exit_with(main)"
# so that --local-processes=auto is 2 for a table of some bytes
LARGE = "from beam_jobs.runners import processes; processes._SECONDS_PER_PROCESS = 1e-9; "
LARGE += "processes.num_cores = lambda: 2; processes.free_memory_bytes = lambda: 2**32; "
PIECES = "from converters.table import survey; survey._PIECE_BYTES = 2000; "
ENDS = [("launcher", signal.SIGKILL, "auto")]
if SWEEP:
    ENDS += [("group", signal.SIGINT, "auto"), ("launcher", signal.SIGINT, "auto")]
    ENDS += [(of, number, processes) for of, number, _ in ENDS for processes in (1, 2)]
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
KILLS_OF_PIECES = ("after:survey.*-2", "half:survey.*-1", "half:train.*-0", "after:train.*-0")


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """Three tables of Parquet in row groups of 40 rows, and one of csv. `even` is true where the note has an even
    number."""
    directory = tmp_path_factory.mktemp("tables")
    for part in range(3):
        rows = range(100 * part, 100 * part + 100)
        table = {
            "x": [i / 7 for i in rows],
            "city": ["ab"[i % 2] for i in rows],
            "note": [f"row {i}" for i in rows],
            "even": [((False, True), ("false", "true"), (0, 1))[part][i % 2 == 0] for i in rows],
        }
        parquet.write_table(pa.table(table), directory / f"train-{part}.parquet", row_group_size=40)
    lines = [f'{i / 7},{"ab"[i % 2]},"row\n{i}",{(i + 1) % 2}' for i in range(300, 400)]
    (directory / "train-3.csv").write_text("\n".join(["x,city,note,even", *lines]))
    return directory


@pytest.fixture(scope="module")
def start(fork_server, tmp_path_factory, raw):
    """start(out, kill_at, processes, variable=value, ...) -> (the process of the command, the file that it prints
    to)."""

    def started(out, kill_at="", processes=1, pieces="", **variables):
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
            **variables,
        }
        printed = tmp_path_factory.mktemp("printed") / "printed"
        command = ["-c", OWN_GROUP + LARGE + pieces + CONVERT, *flags]
        return fork_server.start(command, printed, {**os.environ, **env}), printed

    return started


@pytest.fixture(scope="module")
def convert(start):
    """convert(out, ...) -> (exit code, all that the command printed)."""

    def converted(*args, **options):
        process, printed = start(*args, **options)
        return process.wait(timeout=120)[0], printed.read_text()

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


@pytest.mark.parametrize(
    ("kill_at", "processes"),
    [
        *((kill, 1) for kill in (KILLS if SWEEP else KILLS[:2])),
        pytest.param(KILLS[1], "auto", marks=pytest.mark.slow),
    ],
)
def test_a_table_that_was_killed_resumes_to_the_same_bytes(
    convert, expected, out, kill_at, processes
):
    code, printed = convert(out, kill_at, processes)
    assert code == -signal.SIGKILL, printed
    code, printed = convert(out)
    assert code == 0, printed
    assert digests(out) == expected
    assert [
        path
        for path in Path(out).rglob("*")
        if path.name.endswith(".tmp") or path.parent.name == "_scratch"
    ] == []


@pytest.mark.parametrize("kill_at", KILLS_OF_PIECES if SWEEP else KILLS_OF_PIECES[:1])
def test_a_table_in_pieces_that_was_killed_resumes_to_the_bytes_of_one_that_is_whole(
    convert, expected, tmp_path, out, kill_at
):
    code, printed = convert(out, kill_at, pieces=PIECES)
    assert code == -signal.SIGKILL, printed
    seen = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/_scratch/survey.*-?")}
    assert len(seen) == (8 if "train" in kill_at else int(kill_at[-1]) + ("after" in kill_at))
    code, printed = convert(out, "before:train.*-0", pieces=PIECES)
    assert code == -signal.SIGKILL, printed
    assert (
        seen.items()
        <= {
            path: path.stat().st_mtime_ns for path in tmp_path.glob("out/_scratch/survey.*-?")
        }.items()
    )
    code, printed = convert(out, pieces=PIECES)
    assert code == 0, printed
    assert digests(out) == expected
    assert list((out / "_scratch").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "pieces"), [*[(2, "")] * SWEEP, ("auto", ""), ("auto", PIECES)]
)
def test_two_processes_write_the_same_bytes_of_tables(convert, expected, out, processes, pieces):
    code, printed = convert(out, processes=processes, pieces=pieces)
    assert code == 0, printed
    assert " s in 2 processes, " in printed
    note = "note: 2 processes, because the CPU limits this conversion (--local-processes)"
    assert printed.count(note) == (processes == "auto")
    summary = json.loads((out / "_summary/train.json").read_text())
    assert summary["local_processes"] == 2
    assert digests(out) == expected
    found = {record["note"][0].split()[1]: record["even"] for record in records_of(out)}
    assert found == {str(i).encode(): [1 - i % 2] for i in range(400)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "number", "processes", "pieces"),
    [*((*end, "") for end in ENDS), ("launcher", signal.SIGINT, "auto", PIECES)],
)
def test_after_ctrl_c_and_kills_of_the_launcher_no_process_is_left_and_the_command_resumes(
    start, convert, expected, tmp_path, out, of, number, processes, pieces
):
    place = "half:survey.*-2" if pieces else "half:train-00001-of-*3"
    waits = str(tmp_path / "waits")
    process, printed = start(out, place, processes, pieces, STOP_ONE=waits)
    while not (tmp_path / "waits").exists():
        assert process.poll() is None, printed.read_text()
        time.sleep(0.05)
    group = [each for each in psutil.process_iter() if os.getpgid(each.pid) == process.pid]
    assert (len(group) > 2) == (processes != 1)
    if of == "group":  # as a terminal does
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    status = 130 if number == signal.SIGINT else -number
    assert process.wait(timeout=60)[0] == status, printed.read_text()
    _, alive = psutil.wait_procs(group, timeout=30)
    assert not alive
    assert "Traceback" not in printed.read_text()
    code, again = convert(out, processes=processes, pieces=pieces)
    assert code == 0, again
    assert digests(out) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kill", "pieces"), [("half:train-00001-of-*3", ""), ("half:survey.*-2", PIECES)]
)
def test_a_killed_worker_ends_the_command_and_the_next_goes_on(
    convert, expected, tmp_path, out, kill, pieces
):
    killed = str(tmp_path / "killed")
    code, printed = convert(out, kill, "auto", pieces, KILL_ONE=killed)
    assert code == 2
    assert "error: a worker process died: Worker subprocess exited with return code" in printed
    code, printed = convert(out, processes="auto", pieces=pieces)
    assert code == 0, printed
    assert digests(out) == expected
