"""Memory is a few records, not a shard and not a dataset, however the source is read: .ci/sweep shows it up to 4 GB."""

import pytest
from memory import BUCKET, MIB, ROWS, peak
from sweep import SWEEP

pytestmark = [pytest.mark.slow, pytest.mark.sweep, pytest.mark.timeout(800)]
SMALL, LARGE = 0.2, 0.6  # GB


@pytest.fixture(scope="module")
def peak_of(gcs_server, tmp_path_factory):
    """peak_of("source", gigabytes): MiB over idle."""
    gcs_server.make_bucket(BUCKET)
    scratch = tmp_path_factory.mktemp("memory") / "scratch"
    return lambda name, gigabytes: peak(ROWS[name], gigabytes, scratch, gcs_server) / MIB


@pytest.mark.parametrize("name", ROWS if SWEEP else ["tars"])
def test_the_peak_over_idle_is_that_of_a_few_records_and_does_not_grow_with_the_data(peak_of, name):
    row = ROWS[name]
    first, *more = (
        peak_of(name, gigabytes) for gigabytes in (row.gigabytes if SWEEP else (SMALL, LARGE))
    )
    assert first <= row.bound
    assert all(peak <= (row.bound if SWEEP else first + 16) for peak in more)
