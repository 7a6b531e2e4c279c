"""Memory is a few records, not a shard and not a dataset, from whatever source: .ci/sweep shows it up to 4 GB."""

import pytest
from memory import BUCKET, MIB, ROWS, peak


@pytest.fixture(scope="module")
def server(gcs_server):
    gcs_server.make_bucket(BUCKET)
    return gcs_server


@pytest.mark.long
@pytest.mark.parametrize("name", ROWS)
def test_the_peak_over_idle_is_that_of_a_few_records(server, tmp_path, capsys, name):
    row = ROWS[name]
    found = peak(row, row.gigabytes[0], tmp_path / "scratch", server)
    with capsys.disabled():
        print(f"\n{name}, {row.gigabytes[0]} GB: {found.bytes / MIB:.0f} MiB over idle", end=" ")
    assert found.bytes <= row.bound * MIB


@pytest.mark.long
def test_the_peak_over_idle_does_not_grow_with_the_data(server, tmp_path, capsys):
    peaks = [peak(ROWS["tars"], gigabytes, tmp_path / "scratch", server).bytes / MIB for gigabytes in (0.2, 1)]
    with capsys.disabled():
        print(f"\ntars, 0.2 and 1 GB: {peaks[0]:.0f} and {peaks[1]:.0f} MiB over idle", end=" ")
    assert peaks[1] <= peaks[0] + 16
