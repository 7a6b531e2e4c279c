"""python -m trainer.device_speed: its table and JSON on this machine, its errors, and its arithmetic by hand."""

import json
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from pipeline.sizes import MiB
from pipeline.tools.command import exit_with
from trainer import device_speed

EVERY = [
    *(("matmul", "1024x1024", dtype, "tflops_per_second") for dtype in ("bfloat16", "float32", "float32_highest")),
    ("memory", "256 MiB", "float32", "gigabytes_per_second"),
    ("transfer", "64 MiB", "uint8", "gigabytes_per_second"),
    ("dispatch", "scalar", "float32", "microseconds_per_dispatch"),
]


@pytest.fixture
def command(monkeypatch, capsys):
    """command("--json"): (exit code, stdout, stderr) of the command in this process."""

    def run(*options):
        monkeypatch.setenv("COLUMNS", "100")
        try:
            exit_with(lambda: device_speed.main(options))
            status = 0
        except SystemExit as left:
            status = left.code
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def second_per_call(monkeypatch):
    """Every call takes a second. Returns the results of the calls."""
    results = []
    monkeypatch.setattr(device_speed, "repeat", lambda call, value, seconds: [results.append(call(value)) or 1.0] * 5)
    return results


@pytest.mark.slow
def test_the_json_has_every_measurement_with_units_in_its_keys(command):
    status, printed, _ = command("--seconds", "0.1", "--platform", "cpu", "--json")
    assert status == 0
    shown = json.loads(printed)
    rows = shown.pop("measurements")
    assert shown == {"device_kind": "cpu", "platform": "cpu", "jax": jax.__version__}
    for row, (measurement, size, dtype, unit) in zip(rows, EVERY, strict=True):
        assert 0 < row.pop(f"{unit}_min") <= row.pop(unit) <= row.pop(f"{unit}_max")
        assert row == {"measurement": measurement, "size": size, "dtype": dtype}


def test_the_table_names_the_device_and_has_medians_of_the_requested_measurements(command, monkeypatch):
    monkeypatch.setattr(device_speed, "measure", lambda *_: ("small", [3.0, 1.0, 50.0, 4.0, 2.0]))
    status, printed, _ = command("--only", "dispatch", "matmul")
    assert (status, f"cpu (cpu), JAX {jax.__version__}" in printed) == (0, True)
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if line.startswith("│")]
    assert lines == [
        ["dispatch, µs", "small", "float32", "3", "1–50"],
        *(["matmul, TFLOP/s", "small", dtype, "3", "1–50"] for dtype in ("bfloat16", "float32", "float32_highest")),
    ]


def test_the_time_is_divided_among_the_measurements(command, monkeypatch):
    asked = []
    monkeypatch.setattr(device_speed, "measure", lambda *given: asked.append(given) or ("small", [1.0] * 5))
    command("--only", "matmul", "memory", "--seconds", "6")
    assert asked == [(measurement, dtype, 1.5) for measurement, _, dtype, _ in EVERY[:4]]


@pytest.mark.parametrize(
    "options",
    [["--only", "matmull"], ["--platform", "abacus"], *(["--seconds", each] for each in ("soon", "0", "nan", "inf"))],
    ids=" ".join,
)
def test_invalid_measurement_options_are_one_line_and_exit_code_2(command, options):
    status, printed, failed = command(*options)
    assert (status, printed, failed.count("\n")) == (2, "", 1)
    assert options[0] in failed


def test_an_array_that_does_not_fit_is_one_line_and_exit_code_2(command, monkeypatch):
    monkeypatch.setattr(device_speed, "MiB", 10**12)
    status, printed, failed = command("--only", "memory")
    assert (status, printed, failed.count("\n")) == (2, "", 1)
    assert failed.startswith("error: memory failed: RESOURCE_EXHAUSTED: ")
    assert failed.endswith(" --only measures the rest.\n")


def test_without_jax_the_error_says_what_to_install(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    status, _, failed = command()
    assert (status, failed.count("\n")) == (2, 1)
    assert "Install what training needs: pip install " in failed


@pytest.mark.parametrize(("seconds", "calls"), [(0.1, 1), (5, 1), (10, 2), (35, 7)])
def test_a_repetition_makes_the_calls_that_its_share_of_the_time_allows(monkeypatch, seconds, calls):
    now, given = [0.0], []
    monkeypatch.setattr(device_speed, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def call(number):
        now[0] += 1.0 if given else 100.0  # the first call compiles
        given.append(number)
        return number + 1

    assert device_speed.repeat(call, 0, seconds) == [1.0] * 5
    assert given == [*range(2 + 5 * calls)]


@pytest.mark.parametrize(
    ("measurement", "dtype", "value"),
    [
        ("matmul", "bfloat16", 2 * 1024**3 / 1e12),
        ("memory", "float32", 2 * 256 * MiB / 1e9),  # every byte is read and written
        ("transfer", "uint8", 64 * MiB / 1e9),
        ("dispatch", "float32", 1e6),
    ],
)
def test_rates_by_hand(second_per_call, measurement, dtype, value):
    assert device_speed.measure(measurement, dtype, 10)[1] == [value] * 5


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float32_highest"])
def test_products_have_the_dtype_and_the_precision_that_they_state(second_per_call, monkeypatch, dtype):
    dot, precisions = jax.lax.dot, []
    monkeypatch.setattr(jax.lax, "dot", lambda *given, precision: precisions.append(precision) or dot(*given))
    device_speed.measure("matmul", dtype, 10)
    assert precisions == ["highest" if dtype == "float32_highest" else "default"]
    assert second_per_call[0].dtype == dtype.removesuffix("_highest")


def test_a_transfer_copies_its_array(second_per_call, monkeypatch):
    """Of aligned arrays, a device of a CPU uses the memory of the host."""
    put = jax.device_put

    def aligned_ones(size, dtype):
        buffer = np.full(size + 64, 1, dtype)
        return buffer[-buffer.ctypes.data % 64 :][:size]

    def watched(array):
        result = put(array)
        assert result.unsafe_buffer_pointer() != array.ctypes.data
        assert np.array_equal(array, result)
        return result

    monkeypatch.setattr(np, "ones", aligned_ones)
    monkeypatch.setattr(jax, "device_put", watched)
    device_speed.measure("transfer", "uint8", 10)
    assert len(second_per_call) == 1
