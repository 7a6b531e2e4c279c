"""The examples that are programs of their own. README's commands and the notebook are run by CI."""

import runpy
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_speed_of_a_device_is_measured_in_five_ways():
    measurements = runpy.run_path(str(EXAMPLES / "device_speed.py"))["measurements"]
    measurements.__globals__["SECONDS"] = 0.001
    measured = list(measurements(side=64, megabytes=1))
    assert [unit for _, _, unit in measured] == [
        "TFLOP/s",
        "TFLOP/s",
        "GB/s",
        "GB/s",
        "microseconds",
    ]
    assert all(value > 0 for _, value, _ in measured)
