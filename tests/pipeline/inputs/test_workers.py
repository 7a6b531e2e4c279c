"""Batches that worker processes make: the same bits, and what becomes of a worker, or of who started it, is noticed."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from bad_pictures import BAD, OPS
from host_batches import assert_same, joined, taken
from record_sources import SOURCES
from sweep import SWEEP
from worker_ops import Fault, Scratch

from pipeline.datasets import cached, eval_dataset, mixture, open_dataset, train_dataset
from pipeline.errors import (
    BadRecordsError,
    CorruptRecordError,
    InputError,
    OptionError,
    SchemaError,
    StallError,
)
from pipeline.hosts import Hosts
from pipeline.inputs.work import divided
from pipeline.sources.records import as_records

NUMBERS = {"number": np.arange(64)}


def alive(pid):
    """Whether a process runs: neither gone nor waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids, seconds=10.0):
    end = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(map(alive, pids))


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOURCES, ids=lambda kind: kind.name)
def test_bits_do_not_depend_on_workers_whatever_the_source(kind, tmp_path, write_dataset):
    kind.write(tmp_path / "data", range(40), write_dataset)
    data = kind.open(tmp_path / "data")
    options = {"global_batch": 8, "epochs": "span", "seed": 3}
    if "kept in RAM" in kind.name:
        with pytest.raises(
            OptionError, match="cache='ram' is the memory of one process, and workers=2 are others"
        ):
            train_dataset(data, workers=2, **options)
        return
    made = train_dataset(data, workers=2, **options)
    assert_same(taken(made, count=12), taken(train_dataset(data, **options), count=12))
    if kind.evaluates and as_records(data):
        assert_same(
            *(taken(eval_dataset(data, global_batch=7, workers=workers)) for workers in (3, 0))
        )


@pytest.mark.parametrize(
    ("workers", "hosts"),
    [*itertools.product([1, 2, 3, 20], [1, 2, 4])]
    if SWEEP
    else [(2, 2), pytest.param(20, 1, marks=pytest.mark.slow)],
)
def test_bits_depend_neither_on_workers_nor_on_hosts_nor_on_where_a_run_resumed(
    workers, hosts, pictures
):
    options = {"global_batch": 8, "ops": OPS, "seed": 5}
    one = train_dataset(pictures[0], **options)
    expected = taken(one, one.advance(one.start, 4), 5)
    made = []
    for index in range(hosts):
        source = train_dataset(pictures[0], hosts=Hosts(index, hosts), workers=workers, **options)
        made.append(taken(source, source.advance(source.start, 4), 5))
    assert_same(joined(made), expected)


@pytest.mark.parametrize("on_error", ["skip", "mask"])
@pytest.mark.parametrize("workers", [3, "auto"])
def test_bad_records_are_left_out_and_listed_as_in_one_process(
    pictures, on_error, workers, two_workers, tmp_path, caplog
):
    made = []
    for each in (0, workers):
        file = tmp_path / f"bad_{each}.jsonl"
        options = {"global_batch": 8, "ops": OPS, "on_error": on_error, "quarantine_file": file}
        options |= {"read_ahead_bytes": 1}
        source = train_dataset(pictures[1], workers=each, **options)
        caplog.clear()
        batches = taken(source, count=9)
        warned = sorted(text for text in caplog.messages if "leaves out" in text)
        made.append((batches, source.quarantine, file.read_text(), warned))
    assert_same(made[1][0], made[0][0])
    assert made[1][1:] == made[0][1:]
    assert {bad.record_id for bad in made[1][1]} == set(BAD)


@pytest.mark.parametrize("workers", [2, "auto"])
def test_the_budget_of_bad_records_is_of_all_workers(pictures, workers, two_workers):
    options = {"ops": OPS, "on_error": "mask", "max_bad_records": 5, "read_ahead_bytes": 1}
    source = eval_dataset(pictures[1], global_batch=4, workers=workers, **options)
    with pytest.raises(BadRecordsError, match="6 records are bad on this host; max_bad_records=5"):
        taken(source)


def test_a_bad_record_raises_the_error_of_one_process_and_names_the_worker(pictures):
    with pytest.raises((SchemaError, CorruptRecordError), match="record 3 at byte") as raised:
        taken(eval_dataset(pictures[1], global_batch=8, ops=OPS, workers=2))
    assert "in worker 1 of 2 (process " in raised.value.__notes__[0]


@pytest.mark.slow
def test_a_mixture_of_sources_and_a_cache_on_a_disk_have_the_same_bits(pictures, tmp_path):
    def source(workers, folder):
        kept = cached(open_dataset(pictures[0], "train"), tmp_path / folder)
        return train_dataset(mixture([kept, open_dataset(pictures[0], "validation")], [2, 1]),
                             global_batch=12, ops=OPS, workers=workers)  # fmt: skip

    expected = taken(source(0, "one"), count=8)
    assert_same(taken(source(2, "two"), count=8), expected)
    assert_same(taken(source(2, "two"), count=8), expected)  # from the cache


@pytest.mark.slow
def test_batches_that_are_kept_stay_as_they_are_and_slots_are_used_again():
    batches = train_dataset(
        NUMBERS, global_batch=16, workers=2, read_ahead_bytes=1
    ).batches()  # a batch per slot
    kept = [next(batches) for _ in range(30)]
    expected = taken(train_dataset(NUMBERS, global_batch=16), count=30)
    assert_same(kept, expected)
    assert all(value.ctypes.data % 64 == 0 for batch in kept for value in batch.values())
    size, files = os.fstat(batches._slots.file).st_size, len([*Path("/proc/self/fd").iterdir()])
    view = kept.pop()["number"][2:4]
    for _ in range(100):
        next(batches)
    assert os.fstat(batches._slots.file).st_size == size
    kept += [next(batches) for _ in range(200)]
    assert len([*Path("/proc/self/fd").iterdir()]) < files + 10  # however many are kept
    np.testing.assert_array_equal(view, expected[-1]["number"][2:4])  # a view keeps its slot
    assert_same(kept[:29], expected[:-1])
    batches.close()


def test_rows_are_divided_among_workers_in_order():
    rows = (range(3, 8), range(20, 26))
    for parts in range(1, 15):
        found = divided(rows, parts)
        assert [row for part in found for each in part for row in each] == [
            *range(3, 8),
            *range(20, 26),
        ]
        assert {len(list(itertools.chain(*part))) for part in found} <= {
            11 // len(found),
            -(-11 // len(found)),
        }
        assert len(found) == min(parts, 11)


def test_workers_load_neither_jax_nor_tensorflow():
    with pytest.raises(SchemaError, match=r"raised ValueError: \[\]"):
        taken(eval_dataset(NUMBERS, global_batch=8, ops=[Fault("loads_jax", 5)], workers=2))


TOLD = {
    "exits": (InputError, r"worker 2 of 2 \(process \d+\), which was making .* 52, 53, 54, .* ended with code 7\."),
    "dies": (InputError, r"worker 2 of 2 \(process \d+\), .*was ended by signal 9\. If nobody did that,"),
    "is_suspended": (StallError, r"waited 2 s for worker 2 of 2 \(process \d+\), .*52, 53, 54, .* and is alive,"),
    "sleeps": (StallError, "waited 2 s for "),
    "runs_out_of_memory": (MemoryError, None),
}  # fmt: skip


@pytest.mark.parametrize(
    ("workers", "does"),
    [
        *((2, does) for does in TOLD if does != "sleeps"),
        *(("auto", does) for does in ("dies", "is_suspended")),
        pytest.param(2, "sleeps", marks=pytest.mark.slow),
    ],
)
def test_what_happens_to_a_worker_ends_the_batches_and_is_told(does, workers, two_workers):
    error, told = TOLD[does]
    stall_seconds = 2 if error is StallError else 60
    options = {"global_batch": 8, "ops": [Fault(does, 54)], "read_ahead_bytes": 1}
    options |= {"stall_seconds": stall_seconds, "workers": workers}
    batches, seen = eval_dataset(NUMBERS, **options).batches(), []
    with pytest.raises(error, match=told):
        seen.extend(batches)
    pids = {int(pid) for batch in seen for pid in batch["pid"]} - {os.getpid()}
    assert len(seen) == 6
    assert len(pids) == 2
    assert batches.join(10)
    assert not any(map(alive, pids))
    assert next(batches, None) is None


def test_an_error_of_a_user_keeps_its_traceback():
    told = r"Fault\(does='raises', at=18\) raised ZeroDivisionError: of a user's own"
    with pytest.raises(SchemaError, match=told) as raised:
        taken(eval_dataset(NUMBERS, global_batch=8, ops=[Fault("raises", 18)], workers=2))
    assert "worker_ops.py" in raised.value.__notes__[0]
    assert 'raise ZeroDivisionError("of a user\'s own")' in raised.value.__notes__[0]


@pytest.mark.slow
def test_what_other_processes_cannot_import_is_refused_before_any_batch(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np\nfrom pipeline.datasets import train_dataset\n"
        "class Own:\n    reads = ('x',)\n    def output_spec(self, specs): return {'x': specs['x']}\n"
        "    def __call__(self, features, rng): return {'x': features['x']}\n"
        "train_dataset({'x': np.arange(9.0)}, global_batch=4, ops=[Own()], workers=2)\n"
    )
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (
        "OptionError: workers=2 cannot use Own: it is defined in the program that was started or in a notebook, "
        in (done.stderr)
    )
    fault = Fault("exits", 3)
    object.__setattr__(fault, "does", lambda: 3)
    with pytest.raises(
        OptionError, match=r"workers=1: the source, or an op, cannot be passed to another process:"
    ):
        train_dataset(NUMBERS, global_batch=4, ops=[fault], workers=1)
    with pytest.raises(
        OptionError, match="workers=-1 must be at least 0; 0 makes the batches in this process"
    ):
        train_dataset(NUMBERS, global_batch=4, workers=-1)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [3, "auto"])
@pytest.mark.parametrize("how", ["SIGKILL", "exit", "close"])
def test_workers_end_with_the_process_that_started_them(how, workers, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np, sys, time, os\nfrom pipeline.datasets import train_dataset\nfrom worker_ops import Fault\n"
        "from pipeline.inputs import dataset_input\ndataset_input.choose_workers = lambda *_: 3\n"
        f"if __name__ == '__main__':\n    how, wait = {how!r}, 1000\n"
        "    data = {'number': np.arange(64)}\n"
        "    batches = train_dataset(data, global_batch=8, ops=[Fault('exits', -1)],\n"
        f"                            workers={workers!r}, read_ahead_bytes=1).batches()\n"
        "    next(batches), next(batches)\n"
        "    print(*{int(pid) for pid in next(batches)['pid']}, flush=True)\n"
        "    if how == 'close':\n        batches.close()\n"
        "    time.sleep(0 if how == 'exit' else 1000)\n"
    )
    (tmp_path / "current").mkdir()
    (tmp_path / "current/json.py").write_text("raise SystemExit('the current directory')")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command, current = [sys.executable, program], tmp_path / "current"
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=env, cwd=current
    ) as process:
        assert process.stdout
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 3
        if how.startswith("SIG"):
            process.send_signal(signal.Signals[how])
        assert gone(pids)
        process.kill()


def test_ops_may_write_into_their_own_array_and_start_processes_and_workers_ignore_ctrl_c():
    ops = [Scratch(), Fault("starts_a_process", 5), Fault("is_interrupted", 18)]
    assert len(taken(eval_dataset(NUMBERS, global_batch=8, ops=ops, workers=2))) == 8


def test_a_worker_stops_to_look_for_stand_ins_when_too_many_records_are_bad():
    numbers = {"number": np.zeros(300_000, np.int64)}
    options = {"ops": [Fault("raises", 0)], "on_error": "skip", "max_bad_records": 5}
    batches = train_dataset(numbers, global_batch=8, workers=2, **options).batches()
    with pytest.raises(
        BadRecordsError, match=r"records are bad on this host; max_bad_records=5\. The first are:"
    ):
        next(batches)


def test_threads_may_share_the_batches():
    batches, got = (
        eval_dataset({"number": np.arange(4000)}, global_batch=8, workers=2).batches(),
        [],
    )
    with ThreadPoolExecutor(3) as pool:
        for each in [
            pool.submit(lambda: got.extend(batch["number"] for batch in batches)) for _ in range(3)
        ]:
            each.result()
    assert sorted(map(tuple, got)) == [
        tuple(range(first, first + 8)) for first in range(0, 4000, 8)
    ]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_workers_end_with_their_process_although_one_forked_from_it_lives():
    program = (
        "import numpy as np, os, time\nfrom pipeline.datasets import train_dataset\n"
        "batches = train_dataset({'x': np.arange(64)}, global_batch=8, workers=2).batches()\nnext(batches)\n"
        "print(*[worker.process.pid for worker in batches._workers], flush=True)\n"
        "if os.fork() == 0:\n    os.close(1)\n    time.sleep(30)\n    os._exit(0)\ntime.sleep(1000)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.kill()
        assert len(pids) == 2
        assert gone(pids)


@pytest.mark.slow
def test_a_module_that_makes_batches_when_it_is_imported_is_refused_in_a_worker(tmp_path):
    (tmp_path / "unguarded.py").write_text(
        "import numpy as np\nfrom pipeline.datasets import train_dataset\nfrom pipeline.ops import Keep\n"
        "class Own(Keep):\n    pass\n"
        "next(train_dataset({'x': np.arange(9)}, global_batch=3, ops=[Own(['x'])], workers=1).batches())\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    command = [sys.executable, "-c", "import unguarded"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=False)
    assert (
        "a worker process would start workers: it imports the module of an op, which makes batches when it"
        in (done.stderr)
    )


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, "auto"])
def test_a_keyboard_interrupt_is_not_taken_for_the_end_of_the_data(workers, two_workers):
    options = {"global_batch": 8, "ops": [Fault("sleeps", 54)], "read_ahead_bytes": 1}
    batches = eval_dataset(NUMBERS, workers=workers, **options).batches()
    threading.Timer(2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        list(batches)
    with pytest.raises(
        InputError, match=r"these batches were interrupted\. Call batches\(position\) for the rest"
    ):
        next(batches)
    assert batches.join(10)


def test_a_path_that_python_ignores_is_ignored(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    assert len(taken(eval_dataset(NUMBERS, global_batch=8, workers=1))) == 8
