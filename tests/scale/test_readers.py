"""What a reader holds does not grow with the number of records: .ci/sweep shows it for a billion, which takes 8 GB of disk."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sparse_split import LENGTH, write_sparse
from sweep import SWEEP

NUMBERS = (100_000_000, 1_000_000_000) if SWEEP else (2_000_000, 42_000_000)
BATCHES = 2_700  # of 1,024 records: four windows, and the fifth is read
PROGRAM = Path(__file__).parent / "read_split.py"


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What read_split.py prints of each of the numbers."""

    def read(number):
        directory = write_sparse(tmp_path_factory.mktemp("split"), number, 10)
        command = [
            sys.executable,
            str(PROGRAM),
            directory,
            *([str(BATCHES), "100000"] if SWEEP else []),
        ]
        printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=800)
        return json.loads(printed.stdout)

    return [read(number) for number in NUMBERS]


def bytes_per_record(seen, moment):
    few, many = (each[moment]["private"] - each["before"]["private"] for each in seen)
    return (many - few) * 1e6 / (NUMBERS[1] - NUMBERS[0])


@pytest.mark.timeout(800)
def test_a_reader_holds_a_fifth_of_a_byte_per_record_once_it_has_used_all_parts(seen):
    assert bytes_per_record(seen, "opened") < 0.1
    assert bytes_per_record(seen, "located") < 0.2
    assert all(each["opened"]["seconds"] < 2 for each in seen)


@pytest.mark.sweep
def test_training_reads_less_than_twice_what_it_delivers(seen):
    for each in seen:
        bytes_read = (each["trained"]["read"] - each["located"]["read"]) * 1e6
        assert bytes_read < 2 * LENGTH * 1_024 * BATCHES


@pytest.mark.sweep
def test_neither_training_nor_evaluation_hold_more_for_more_records(seen):
    assert bytes_per_record(seen, "trained") < 0.2
    assert bytes_per_record(seen, "evaluated a part") < 0.2
