"""The benchmark that anyone with an accelerator runs: its rows train here too, on small models."""

import importlib.util
from dataclasses import asdict, replace
from pathlib import Path

import jax
import pytest

FILE = Path(__file__).parents[1] / "benchmarks/accelerator.py"


@pytest.fixture(scope="module")
def accelerator():
    spec = importlib.util.spec_from_file_location("accelerator", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("number", [2, 4])  # a CNN from shards; the Transformer with --remat attention
def test_a_row_of_the_table_is_measured(accelerator, number, tmp_path):
    accelerator.write_shards(tmp_path, 32, 40)
    row = list(accelerator.rows(tiny=True, gpu=False))[number]
    small = replace(row, k=2, layers=1, width=32, length=min(16, row.length))
    found = accelerator.measure(small, str(tmp_path), 0.1, peak_tflops=1.0)
    assert found["steps"] >= 4
    assert found["per_second"] > 0
    assert found["of_peak"] == pytest.approx(found["tflops"] / jax.device_count())
    cells = accelerator.line(row, asdict(row) | found).strip("| ").split(" | ")
    assert cells[:4] == [row.name, row.input, "10", str(row.batch)]
    assert cells[4].endswith(" tokens" if row.length else " images")


def test_the_rows_of_a_gpu_have_every_k_both_inputs_and_every_remat(accelerator):
    rows = list(accelerator.rows(tiny=False, gpu=True))
    assert [row.k for row in rows if row.input == "memory" and not row.length] == [1, 10, 100]
    assert next(row.workers for row in rows if row.input == "shards") == 0
    names = [
        "Transformer",
        *(f"Transformer, remat {how}" for how in ("attention", "dots", "full")),
        "Transformer, cudnn",
    ]
    assert [row.name for row in rows if row.length] == names
    assert accelerator.fitting(rows[-1], 80 * 10**9, 1) == 32
    assert accelerator.fitting(rows[0], 80 * 10**9, 8) == 8 * 512
    assert accelerator.fitting(rows[-1], None, 1) == 4


def test_a_row_that_fails_is_a_line_with_its_error(accelerator):
    row = next(accelerator.rows(tiny=True, gpu=False))
    assert "| no space |" in accelerator.line(row, asdict(row) | {"error": "no space"})
