"""Memory is a few records, not a shard and not a dataset, however the source is read: .ci/sweep shows it up to 4 GB."""

import pytest
from memory import BUCKET, MIB, ROWS, peak

pytestmark = pytest.mark.long
SMALL, LARGE = 0.2, 0.6  # GB


@pytest.fixture(scope="module")
def peak_of(gcs_server, tmp_path_factory):
    """peak_of("source", gigabytes): MiB over idle."""
    gcs_server.make_bucket(BUCKET)
    scratch = tmp_path_factory.mktemp("memory") / "scratch"
    return lambda name, gigabytes: peak(ROWS[name], gigabytes, scratch, gcs_server).bytes / MIB


def test_the_peak_over_idle_is_that_of_a_few_records_and_does_not_grow_with_the_data(peak_of, capsys):
    peaks = [peak_of("tars", gigabytes) for gigabytes in (SMALL, LARGE)]
    with capsys.disabled():
        print(f"\ntars, {SMALL} and {LARGE} GB: {peaks[0]:.0f} and {peaks[1]:.0f} MiB over idle", end=" ")
    assert peaks[0] <= ROWS["tars"].bound
    assert peaks[1] <= peaks[0] + 16
