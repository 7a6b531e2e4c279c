"""python -m trainer.flops: its table and its JSON on this machine, small, and its errors."""

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest

from pipeline.tools.command import exit_with
from trainer import flops
from trainer.measuring import plan
from trainer.measuring.repeating import Times
from trainer.measuring.rows import rate, skipped

SMALL = ["--sizes", "32", "--array", "64KiB", "--seconds", "1", "--platform", "cpu"]
VALUES = {"matmul": "tflops_per_second", "convolution": "tflops_per_second", "dispatch": "microseconds_per_dispatch"}
EVERY = [
    *(("matmul", size, dtype) for dtype in ("float32", "bfloat16") for size in ("32x32", "256x256")),
    *(
        ("convolution", size, dtype)
        for dtype in ("float32", "bfloat16")
        for size in ("1x56x56x64", "8x56x56x64", "8x28x28x128", "8x14x14x256", "8x7x7x512")
    ),
    ("memory", "0.0625 MiB", "float32"),
    ("host_to_device", "0.0625 MiB", "uint8"),
    ("device_to_host", "0.0625 MiB", "uint8"),
    ("dispatch", "synchronous", None),
    ("dispatch", "asynchronous", None),
]
LARGER = ("256x256", "8x56x56x64", "8x28x28x128", "8x14x14x256", "8x7x7x512")  # measured if there is time


@pytest.fixture
def command(monkeypatch, capsys):
    """command("--json"): (exit code, stdout, stderr) of the command in this process."""

    def run(*options):
        monkeypatch.setenv("COLUMNS", "100")
        try:
            exit_with(lambda: flops.main(options))
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
        monkeypatch.setattr(plan, "measure", lambda _, device, clock: devices.append(device) or iter(rows))
        return devices

    return of


def row(dtype, spread=0.1):
    return rate("matmul", "8x8", dtype, "tflops_per_second", 1e14, Times(1.0, 1.0, 1 / (1 - spread), 5))


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
    assert not any(each["skipped"] for each in rows if each["size"] not in LARGER)


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
    measured(skipped("matmul", "8x8", "float32", "tflops_per_second", "would take about 9 s"))
    assert "│ skipped │ would take about 9 s │" in command()[1]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            ["--dtypes", "float23"],
            "--dtypes: there is no 'float23'. Did you mean 'float32'? Known: bfloat16, float16, ",
        ),
        (["--only", "matmull"], "--only: there is no 'matmull'. Did you mean 'matmul'? Known: convolution, dispatch, "),
        (["--sizes", "many"], "argument --sizes: invalid int value: 'many'. See python -m trainer.flops --help."),
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
def test_what_cannot_be_measured_is_one_line_and_exit_code_2(command, options, error):
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
        "import sys\nfrom trainer import flops\ntry: flops.main(['--help'])\nfinally: assert 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.count("--peak-tflops"), done.stderr) == (0, 2, "")
