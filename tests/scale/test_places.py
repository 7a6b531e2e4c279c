"""What one process of a conversion holds at each place where all records meet: it does not grow with them."""

import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import invented

from beam_jobs.split import plan

MB = 10**6
# a process's bytes, or those of Python in it, for 10, 30 and 100 million records
BOUNDS = {"packed bucket": 400 * MB, "bucket": 400 * MB, "commit": 200 * MB}


@pytest.mark.parametrize("place", BOUNDS)
def test_three_times_as_many_records_take_hardly_more_memory(place, tmp_path, monkeypatch):
    monkeypatch.setattr(invented, "SHARD_RECORDS", 5000)
    monkeypatch.setattr(invented, "AT_ONCE", 2000)
    monkeypatch.setattr(invented, "PACKED_AT_ONCE", 2000)
    monkeypatch.setattr(plan, "_ROWS_AT_ONCE", 10_000)
    monkeypatch.setattr(plan, "_PACKED_AT_ONCE", 10_000)

    def peak(records):
        run = invented.PLACES[place](records, tmp_path / str(records))
        tracemalloc.start()
        try:
            assert run() == records
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10_000)  # the first one imports modules
    few, many = peak(30_000), peak(90_000)
    assert many < 1.5 * few


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("place", BOUNDS)
@pytest.mark.parametrize("records", [10 * MB, 30 * MB, 100 * MB])
def test_a_process_stays_below_its_bound(place, records):
    command = [sys.executable, invented.__file__, place, f"--records={records}"]
    held, seconds = subprocess.check_output(command, text=True).split()
    print(f"{place}, {records:,} records: {int(held) / MB:.0f} MB, {seconds} s")
    assert int(held) < BOUNDS[place]
