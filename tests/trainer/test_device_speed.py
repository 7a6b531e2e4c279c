"""python -m trainer.device_speed: its table and JSON on this machine, small, its errors, and its arithmetic by hand."""

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from pipeline.sizes import MiB
from pipeline.tools.command import exit_with
from trainer import device_speed
from trainer.loop.program import flops

SMALL = ["--sizes", "32", "--array", "64KiB", "--seconds", "1", "--platform", "cpu"]
VALUES = {"matmul": "tflops_per_second", "dispatch": "microseconds_per_dispatch"}
EVERY = [
    *(("matmul", size, dtype) for dtype in ("float32", "bfloat16") for size in ("32x32", "256x256")),
    ("memory", "0.0625 MiB", "float32"),
    ("host_to_device", "0.0625 MiB", "uint8"),
    ("dispatch", "synchronous", None),
    ("dispatch", "asynchronous", None),
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
def measured(monkeypatch):
    """measured(row, ...): the command measures these rows. Returns a list of the devices that it was to measure."""

    def of(*rows):
        devices = []
        monkeypatch.setattr(device_speed, "measure", lambda _, device, seconds: devices.append(device) or iter(rows))
        return devices

    return of


def row(dtype, spread=0.1):
    return device_speed.row("matmul", "8x8", dtype, "tflops_per_second", [100.0 * (1 - spread), 100.0, 100.0])


def test_the_json_has_every_measurement_with_units_in_its_keys(command):
    status, printed, _ = command(*SMALL, "--json")
    assert status == 0
    shown = json.loads(printed)
    assert (shown["platform"], shown["device"], shown["num_devices"]) == ("cpu", 0, len(jax.devices()))
    assert (shown["jax"], shown["peak_tflops"]) == (jax.__version__, None)
    assert shown["load_average"] >= 0
    rows = shown["measurements"]
    assert [(each["measurement"], each["size"], each["dtype"]) for each in rows] == EVERY
    for each in rows:
        value = VALUES.get(each["measurement"], "gigabytes_per_second")
        others = {"share_of_peak"} if value == "tflops_per_second" else set()
        assert {*each} == {
            *("measurement", "size", "dtype", "repetitions", "noisy", "skipped"),
            *(value, f"{value}_min", f"{value}_max"),
            *others,
        }
        if each["skipped"]:
            assert re.fullmatch(r"would take \S+ s, \S+ s are left", each["skipped"])
        else:
            assert 0 < each[f"{value}_min"] <= each[value] <= each[f"{value}_max"]
            assert 3 <= each["repetitions"] <= 7
    assert not any(each["skipped"] for each in rows if each["size"] != "256x256")


def test_the_table_names_the_device_and_has_units_and_shares_of_a_given_peak(command):
    status, printed, _ = command(
        *SMALL, *["--seconds", "20", "--only", "dispatch", "matmul", "--dtypes", "float32", "--peak-tflops", "50"]
    )
    assert status == 0
    assert re.search(r"cpu \(cpu\), (the only device|device 0, one of \d+ devices), JAX", printed)
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if line.startswith("│")]
    assert [line[:3] for line in lines] == [
        ["dispatch, µs", "synchronous", ""],
        ["dispatch, µs", "asynchronous", ""],
        ["matmul, TFLOP/s", "32x32", "float32"],
        ["matmul, TFLOP/s", "256x256", "float32"],
    ]
    assert all(float(line[3]) > 0 and "–" in line[4] for line in lines)
    assert [line[5].endswith("%") for line in lines] == [False, False, True, True]


def test_the_known_peak_is_that_of_bfloat16(command, measured, monkeypatch):
    h100 = SimpleNamespace(device_kind="NVIDIA H100 80GB HBM3", platform="gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [h100])
    measured(row("bfloat16"), row("float32"))
    shown = json.loads(command("--json")[1])
    assert shown["peak_tflops"] == 989
    assert [each["share_of_peak"] for each in shown["measurements"]] == [pytest.approx(100 / 989), None]
    shown = json.loads(command("--json", "--peak-tflops", "400")[1])
    assert [each["share_of_peak"] for each in shown["measurements"]] == [0.25, 0.25]


def test_the_device_of_several_that_was_measured_is_named(command, measured, monkeypatch):
    tpus = [SimpleNamespace(device_kind="TPU v4", platform="tpu") for _ in range(4)]
    monkeypatch.setattr(jax, "local_devices", lambda: tpus)
    devices = measured(row("bfloat16"))
    assert command("--device", "2")[1].startswith("TPU v4 (tpu), device 2, one of 4 devices, JAX ")
    assert (len(devices), devices[0] is tpus[2]) == (1, True)
    assert command("--device", "4") == (
        *(2, ""),
        "error: --device=4: there is no such device. JAX finds here: 0 (TPU v4), 1 (TPU v4), 2 (TPU v4), 3 (TPU v4).\n",
    )


def test_a_large_spread_is_a_warning_and_a_mark(command, measured):
    measured(row("float32", 0.2), row("bfloat16", 0.5))
    status, printed, warned = command()
    assert status == 0
    assert [line.count(" * ") for line in printed.splitlines() if "matmul" in line] == [0, 1]
    assert warned.startswith(
        "warning: 1 of 2 measurements (*) vary by more than 30%: another program may be using the device. The load "
    )
    measured(row("float32", 0.2))
    assert command()[2] == ""


def test_a_skipped_measurement_has_its_reason_in_the_table(command, measured):
    reason = "would take about 9 s"
    measured(device_speed.row("matmul", "8x8", "float32", "tflops_per_second", [], skipped=reason))
    assert "│ skipped │ would take about 9 s │" in command()[1]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            ["--dtypes", "float23"],
            "--dtypes: there is no 'float23'. Did you mean 'float32'? Known: bfloat16, float16, ",
        ),
        (["--only", "matmull"], "--only: there is no 'matmull'. Did you mean 'matmul'? Known: dispatch, matmul, "),
        (
            ["--sizes", "many"],
            "argument --sizes: invalid int value: 'many'. See python -m trainer.device_speed --help.",
        ),
        (["--sizes", "512", "0"], "--sizes=0 must be a number above 0."),
        (["--seconds", "nan"], "--seconds=nan must be a number above 0."),
        (["--seconds", "inf"], "--seconds=inf must be a number above 0."),
        (["--peak-tflops", "-1"], "--peak-tflops=-1.0 must be a number above 0."),
        (["--array", "5 apples"], "'5 apples' is not a size in bytes. Write a number and a unit: "),
        (["--array", "1B"], "--array=1B must be at least 4096 bytes."),
        (["--device", "99"], "--device=99: there is no such device. JAX finds here: 0 (cpu)"),
        (["--device", "-1"], "--device=-1: there is no such device."),
        (["--platform", "abacus"], "argument --platform: invalid choice: 'abacus'"),
    ],
    ids=" ".join,
)
def test_invalid_measurement_options_are_one_line_and_exit_code_2(command, options, error):
    status, printed, failed = command(*options)
    assert (status, printed, failed.count("\n")) == (2, "", 1)
    assert failed.startswith(f"error: {error}")


def test_without_jax_the_error_says_what_to_install(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    status, _, failed = command()
    assert (status, failed.count("\n")) == (2, 1)
    assert "Install what training needs: pip install " in failed


def test_the_help_needs_no_jax():
    """Importing JAX takes a second."""
    code = (
        "import sys\nfrom trainer.device_speed import main\n"
        "try: main(['--help'])\nfinally: assert 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.count("--peak-tflops"), done.stderr) == (0, 2, "")


def test_the_old_name_warns_and_measures():
    command = [sys.executable, "-m", "trainer.flops", "--only", "dispatch", "--platform", "cpu", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "DeprecationWarning: python -m trainer.flops is python -m trainer.device_speed now" in done.stderr
    assert [each["size"] for each in json.loads(done.stdout)["measurements"]] == ["synchronous", "asynchronous"]


class Clock:
    """A clock that only calls move: each of them takes `seconds`."""

    now = 100.0

    def __call__(self):
        return self.now

    def call(self, seconds):
        def work(value):
            self.now += seconds
            return value

        return work


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(device_speed, "clock", clock := Clock())
    return clock


@pytest.fixture
def second_per_repetition(monkeypatch):
    """Every repetition of one call takes a second; returns the calls."""
    calls = []
    monkeypatch.setattr(device_speed, "repeat", lambda call, value, seconds: [calls.append(call(value)) or 1.0] * 7)
    return calls


@pytest.mark.parametrize(("seconds", "repetitions"), [(0, 3), (4, 3), (5, 4), (6.5, 5), (100, 7)])
def test_calls_are_repeated_three_to_seven_times_while_the_next_one_would_end_in_time(clock, seconds, repetitions):
    assert device_speed.repeat(clock.call(1.0), 0, seconds) == [1.0] * repetitions


def test_a_repetition_of_short_calls_takes_fifty_milliseconds_and_each_gets_the_result_before(clock):
    numbers = []
    taken = device_speed.repeat(lambda number: clock.call(0.005)(numbers.append(number) or number + 1), 0, 60)
    assert taken == pytest.approx([0.005] * 7)
    assert numbers == [*range(2 + 7 * 10)]


@pytest.mark.parametrize(("platform", "dtypes"), [("cpu", 2), ("gpu", 4), ("tpu", 3)])
def test_the_time_is_divided_by_measurement_and_dtype(monkeypatch, platform, dtypes):
    asked = []
    monkeypatch.setattr(device_speed, "matmuls", lambda *given: asked.append(("matmul", *given[2:])) or [])
    monkeypatch.setattr(device_speed, "memory", lambda *given: asked.append(("memory", *given[1:])))
    monkeypatch.setattr(device_speed, "transfer", lambda *given: asked.append(("transfer", *given[1:])))
    monkeypatch.setattr(device_speed, "dispatches", lambda _, seconds: asked.append(("dispatch", seconds)) or [])
    list(device_speed.measure(device_speed._parsed(["--sizes", "3000", "64"]), SimpleNamespace(platform=platform), 100))
    sizes = [64, 256, 3000] if platform == "cpu" else [64, 1024, 3000]
    assert asked == [
        *[("matmul", sizes, 60 / dtypes)] * dtypes,
        ("memory", (256 if platform == "cpu" else 1024) * MiB, 15),
        *[("transfer", MiB, 7.5), ("transfer", 64 * MiB, 7.5)],
        ("dispatch", 10),
    ]
    asked.clear()
    only = device_speed._parsed(["--only", "dispatch", "transfer", "--array", "512KiB"])
    list(device_speed.measure(only, SimpleNamespace(platform=platform), 100))
    assert asked == [("dispatch", 40), ("transfer", MiB // 2, 30)]


def test_rates_by_hand(second_per_repetition):
    device = jax.devices()[0]
    (product,) = device_speed.matmuls(device, "float32", [16], 100)
    assert (product["size"], product["tflops_per_second"], product["repetitions"]) == ("16x16", 2 * 16**3 / 1e12, 7)
    memory = device_speed.memory(device, 4 * MiB, 100)  # every byte is read and written
    assert (memory["size"], memory["gigabytes_per_second"]) == ("4 MiB", 2 * 4 * MiB / 1e9)
    transfers = [device_speed.transfer(device, size * MiB, 100)["gigabytes_per_second"] for size in (1, 64)]
    assert transfers == [16 * MiB / 1e9, 128 * MiB / 1e9]  # sixteen arrays per call; at least two
    assert [each["microseconds_per_dispatch"] for each in device_speed.dispatches(device, 100)] == [1e6, 1e6]


def test_a_row_has_the_median_its_extremes_and_whether_they_differ_much():
    found = device_speed.row("memory", "1 MiB", "float32", "gigabytes_per_second", [5.0, 1.0, 4.0])
    names = ("gigabytes_per_second", "gigabytes_per_second_min", "gigabytes_per_second_max", "repetitions", "noisy")
    assert [found[name] for name in names] == [4.0, 1.0, 5.0, 3, True]
    found = device_speed.row("memory", "1 MiB", "float32", "gigabytes_per_second", [], skipped="no time")
    assert [found[name] for name in (*names, "skipped")] == [None, None, None, 0, False, "no time"]


@pytest.mark.parametrize("dtype", ["float32", "float32_highest", "bfloat16", "float16"])
def test_a_chain_that_xla_compiled_has_all_its_products_of_which_each_takes_the_result_before(dtype):
    rng, name = np.random.default_rng(0), dtype.partition("_")[0]
    left, right = (rng.standard_normal((16, 16)).astype(np.float32) for _ in range(2))
    chain = device_speed.products(dtype, 5)
    given = [jax.numpy.asarray(array, name) for array in (left, right / 4)]
    jaxpr = jax.make_jaxpr(chain)(*given)
    assert flops(jaxpr) == 5 * 2 * 16**3
    assert ("HIGHEST" in str(jaxpr)) == (dtype == "float32_highest")
    compiled = jax.jit(chain).lower(*given).compile()
    assert compiled.as_text().count(" dot(") == 5
    result = compiled(*given)
    assert result.dtype == name
    if name == "float32":
        np.testing.assert_allclose(result, left @ np.linalg.matrix_power(right / 4, 5), rtol=1e-3, atol=1e-3)


def test_a_product_that_would_take_too_long_does_not_start(second_per_repetition):
    huge = 10**6  # 4 TB per operand: it could not start
    small, large = device_speed.matmuls(jax.devices()[0], "float32", [16, huge], 60)
    assert small["tflops_per_second"] is not None
    assert large["tflops_per_second"] is None
    assert re.fullmatch(rf"would take {re.escape(f'{5 * (huge / 16) ** 3:.2g}')} s, \S+ s are left", large["skipped"])


@pytest.mark.parametrize("error", [jax.errors.JaxRuntimeError("UNIMPLEMENTED: no kernel\nmore"), MemoryError()])
def test_a_product_that_the_device_cannot_compute_is_a_row_that_says_so(monkeypatch, error):
    def fails(*_):
        raise error

    monkeypatch.setattr(device_speed, "repeat", fails)
    (row,) = device_speed.matmuls(jax.devices()[0], "float32", [16], 60)
    assert row["skipped"] == (str(error).partition("\n")[0] or "out of memory")


def test_an_array_that_does_not_fit_is_a_row_that_says_so():
    assert "RESOURCE_EXHAUSTED" in device_speed.memory(jax.devices()[0], 10**15, 1.0)["skipped"]


def test_measurements_copy_their_arrays_to_the_requested_device(second_per_repetition, monkeypatch):
    device, given, put = jax.devices()[-1], [], jax.device_put

    def watched(array, *args):
        result = put(array, *args)
        given.append((result.unsafe_buffer_pointer() == array.ctypes.data, result.devices()))
        assert np.array_equal(array, result)
        return result

    monkeypatch.setattr(jax, "device_put", watched)
    device_speed.transfer(device, MiB // 4, 60)
    assert given == [(False, {device})] * 64 * 1
    monkeypatch.setattr(jax, "device_put", put)
    device_speed.memory(device, 4096, 60)
    list(device_speed.matmuls(device, "bfloat16", [16], 60))
    list(device_speed.dispatches(device, 60))
    assert [each.devices() for each in second_per_repetition if each is not None] == [{device}] * 4
