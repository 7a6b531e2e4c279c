"""Images whose batch is the last axis train to the bits of images with rows first: on one device, eight, two hosts."""

import pytest

pytestmark = pytest.mark.long

ALONE = {
    "one device": (1, {"loop_mode": "step", "accumulate": 2}),
    "eight devices": (8, {"loop_mode": "scan"}),
}
SHARED = {"two hosts": (8, {"loop_mode": "scan", "accumulate": 2})}
RECORDS = 40  # as in host_axes.py


@pytest.fixture(scope="module")
def runs(run_hosts):
    """{run: {layout: [losses, metrics, records, weights] of each process}}, compiled as a user's processes do."""

    def ran(count, devices, runs):
        ended = run_hosts("batch_axes", count, devices, runs=runs, host_timeout_seconds=60, xla_flags="")
        assert [process.code for process in ended] == [0] * count, "\n".join(process.printed for process in ended)
        reports = [process.report for process in ended]
        return {
            name: {layout: [report[f"{name}, {layout}"] for report in reports] for layout in ("NHWC", "HWCN")}
            for name in runs
        }

    return ran(1, 8, ALONE) | ran(2, 4, SHARED)


@pytest.mark.parametrize("name", [*ALONE, *SHARED])
def test_both_layouts_have_the_bits_of_the_same_losses_metrics_and_weights(runs, name):
    rows_first, rows_last = runs[name].values()
    assert rows_last == rows_first
    losses, _, records, _ = rows_last[0]
    assert (len(losses), records) == (8, RECORDS)
    assert losses[-1] < losses[0]
    assert rows_last == rows_last[:1] * len(rows_last)  # all hosts have the same


def test_all_devices_and_hosts_train_the_same(runs):
    one, *others = (layouts["HWCN"][0] for layouts in runs.values())
    for other in others:
        assert other[0] == pytest.approx(one[0], rel=1e-5)
        assert other[1] == pytest.approx(one[1], rel=1e-5)
