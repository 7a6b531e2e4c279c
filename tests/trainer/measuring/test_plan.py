"""What is measured by default, and how the time is divided."""

from types import SimpleNamespace

import pytest

from pipeline.sizes import MiB
from trainer.measuring import plan as planning
from trainer.measuring.choices import DTYPES, MEASUREMENTS
from trainer.measuring.plan import Plan, measure

ALL = Plan([*MEASUREMENTS], None, None, None, 100)


def products(platform, plan=ALL, measurement="matmul"):
    return [[(each.size, each.dtype) for each in series] for series in plan.products(measurement, platform)]


@pytest.mark.parametrize(
    ("platform", "dtypes"),
    [
        ("cpu", ["float32", "bfloat16"]),
        ("gpu", ["bfloat16", "float16", "float32", "float32_highest"]),
        ("tpu", ["bfloat16", "float32", "float32_highest"]),
        ("unheard of", ["float32"]),
    ],
)
def test_each_platform_gets_the_dtypes_that_it_is_made_for(platform, dtypes):
    assert {*dtypes} <= {*DTYPES}
    for measurement in ("matmul", "convolution"):
        assert [series[0][1] for series in products(platform, measurement=measurement)] == dtypes


def test_sizes_of_the_user_come_after_a_small_one_from_small_to_large():
    plan = Plan(["matmul"], ["float16"], [3000, 64, 256, 1000], None, 1)
    assert products("cpu", plan) == [[(f"{n}x{n}", "float16") for n in (64, 256, 1000, 3000)]]
    assert products("gpu", plan)[0][3:] == [("1024x1024", "float16"), ("3000x3000", "float16")]


def test_convolutions_are_those_of_resnet50_and_the_first_is_the_smallest():
    first, *others = next(iter(ALL.products("convolution", "gpu")))
    assert first.size == "8x56x56x64"
    assert [each.size for each in others] == ["256x56x56x64", "256x28x28x128", "256x14x14x256", "256x7x7x512"]
    assert all(each.flops > first.flops for each in others)


@pytest.fixture
def asked(monkeypatch):
    """What the measurements are asked for, by their names, with the seconds that they have."""
    asked = {}

    def of(name, several):
        def measurement(what, *rest):
            deadline = rest[-1] if rest else None
            asked.setdefault(name, []).append((what, deadline.seconds_left))
            return [name] if several else name

        return measurement

    monkeypatch.setattr(planning, "measure_products", of("products", True))
    monkeypatch.setattr(planning, "measure_memory", of("memory", False))
    monkeypatch.setattr(planning, "measure_transfers", of("transfer", True))
    monkeypatch.setattr(planning, "measure_dispatches", lambda device, deadline: of("dispatch", True)(None, deadline))
    return asked


def test_the_time_is_divided_by_measurement_and_dtype_and_by_what_is_left(asked):
    device = SimpleNamespace(platform="cpu")
    rows = list(measure(ALL, device, lambda: 0.0))
    assert rows == ["products"] * 4 + ["memory", "transfer", "dispatch"]
    assert [seconds for _, seconds in asked["products"]] == [17.5, 35, 17.5, 35]  # the clock does not move
    assert asked["memory"] == [(256 * MiB, 10)]
    assert asked["transfer"] == [([MiB, 64 * MiB], 15)]
    assert asked["dispatch"] == [(None, 5)]


def test_measurements_that_are_left_out_leave_their_time_to_the_others(asked):
    only = Plan(["dispatch", "transfer"], None, None, MiB // 2, 100)
    assert list(measure(only, SimpleNamespace(platform="gpu"), lambda: 0.0)) == ["dispatch", "transfer"]
    assert asked == {"dispatch": [(None, 25)], "transfer": [([MiB // 2], 75)]}


def test_an_accelerator_gets_a_larger_array(asked):
    list(measure(Plan(["memory"], None, None, None, 10), SimpleNamespace(platform="gpu"), lambda: 0.0))
    assert asked == {"memory": [(1024 * MiB, 10)]}
