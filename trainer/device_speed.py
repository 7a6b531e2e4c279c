"""python -m trainer.device_speed: measures how fast JAX computes on a device, and how fast data reaches it.

TFLOP/s of matrix products by dtype, GB/s of memory and of transfers to the device, microseconds of a dispatch: the
limits of any training there. It measures the first device that JAX finds. float32 is computed in JAX's default
precision, which is TF32 on GPUs and bfloat16 on TPUs; float32_highest in float32 everywhere. Each value is the median
of five repetitions.

--json prints the device and a list of measurements. Each has tflops_per_second, gigabytes_per_second or
microseconds_per_dispatch, and the same with _min and _max."""

if __name__ == "__main__":
    from pipeline.ctrl_c import leave_at_once

    leave_at_once()  # before the imports: they take seconds

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pipeline.errors import OptionError, how_to_install
from pipeline.sizes import MiB
from pipeline.tools.command import Console, Parser, exit_with, table

EXAMPLES = ("--only memory dispatch --seconds 1", "--seconds 2 --json")
"""The command lines at the end of its help."""

REPETITIONS = 5
MEASUREMENTS = {  # their dtypes, and their units in the table and in the JSON
    "matmul": (("bfloat16", "float32", "float32_highest"), "TFLOP/s", "tflops_per_second"),
    "memory": (("float32",), "GB/s", "gigabytes_per_second"),
    "transfer": (("uint8",), "GB/s", "gigabytes_per_second"),
    "dispatch": (("float32",), "µs", "microseconds_per_dispatch"),
}


def repeat(call: Callable[[Any], Any], value: Any, seconds: float) -> list[float]:
    """Seconds per call, of each repetition. It enqueues as many calls as its share of the time allows, at least one.
    Each call gets the result of the one before."""
    import jax

    value, count, taken = jax.block_until_ready(call(value)), 1, []  # the first call compiles
    for _ in range(1 + REPETITIONS):  # the first one only tells how long a call takes
        began = time.perf_counter()
        for _ in range(count):
            value = call(value)
        jax.block_until_ready(value)
        taken.append((time.perf_counter() - began) / count)
        count = max(1, int(seconds / REPETITIONS / taken[-1]))
    return taken[1:]


def measure(name: str, dtype: str, seconds: float) -> tuple[str, list[float]]:
    """The size of what is measured, and the value of each repetition, in the unit of the measurement."""
    import jax

    cpu = jax.default_backend() == "cpu"
    if name == "matmul":  # a multiplication and its addition are two FLOPs
        size, precision = 1024 if cpu else 8192, "highest" if dtype.endswith("highest") else "default"
        left, right = jax.random.normal(jax.random.key(0), (2, size, size), dtype.partition("_")[0])
        # The operands stay the same: products of products grow or vanish, which changes a device's power and speed.
        taken = repeat(lambda _: jax.lax.dot(left, right, precision=precision), None, seconds)
        return f"{size}x{size}", [2 * size**3 / each / 1e12 for each in taken]
    if name == "memory":  # negated in place: every byte is read once and written once, and both count
        array = jax.numpy.ones((64 if cpu else 256) * MiB, dtype)
        taken = repeat(jax.jit(jax.numpy.negative, donate_argnums=0), array, seconds)
        return f"{array.nbytes // MiB} MiB", [2 * array.nbytes / each / 1e9 for each in taken]
    if name == "transfer":  # from pageable memory, as batches are; a CPU would share an aligned array, not copy it
        array = np.ones(64 * MiB + 1, dtype)[1:]
        taken = repeat(lambda _: jax.block_until_ready(jax.device_put(array)), None, seconds)
        return f"{array.nbytes // MiB} MiB", [array.nbytes / each / 1e9 for each in taken]
    # A dispatch, for a host that runs ahead of the device, as in a training.
    return "scalar", [each * 1e6 for each in repeat(jax.jit(lambda n: n + 1), jax.numpy.zeros((), dtype), seconds)]


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command. Raises InfeedError."""
    parser = Parser("trainer.device_speed", __doc__, EXAMPLES, ("trainer", "trainer.checkpoints"))
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, help="what to measure (default: all)")
    parser.add_argument("--seconds", type=float, default=10, help="about how long, without compiling (default: 10)")
    parser.add_argument("--platform", choices=("cpu", "cuda", "tpu"), help="default: the best that JAX finds")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    if not 0 < args.seconds < float("inf"):
        raise OptionError(f"--seconds={args.seconds} must be a number above 0.")
    try:
        import jax
    except ModuleNotFoundError as error:
        raise OptionError(f"{error}. Install what training needs: {how_to_install('train')}.") from error
    from trainer.cluster.distributed import Devices

    (devices := Devices(platform=args.platform)).choose()
    devices.check()
    device, rows, cells = jax.local_devices()[0], [], []
    wanted = [(name, dtype) for name in args.only or MEASUREMENTS for dtype in MEASUREMENTS[name][0]]
    with Console(stderr=True).status(f"measuring for about {args.seconds:g} s"):
        for name, dtype in wanted:
            try:
                size, values = measure(name, dtype, args.seconds / len(wanted))
            except jax.errors.JaxRuntimeError as error:
                raise OptionError(f"{name} failed: {str(error).splitlines()[0]} --only measures the rest.") from error
            _, unit, key = MEASUREMENTS[name]
            low, _, median, _, high = sorted(values)  # of five repetitions
            row = {"measurement": name, "size": size, "dtype": dtype}
            rows.append(row | {key: median, f"{key}_min": low, f"{key}_max": high})
            cells.append((f"{name}, {unit}", size, dtype, f"{median:.3g}", f"{low:.3g}–{high:.3g}"))
    shown = {"device_kind": device.device_kind, "platform": device.platform, "jax": jax.__version__}
    if args.json:
        print(json.dumps(shown | {"measurements": rows}))
    else:
        title = f"{device.device_kind} ({device.platform}), JAX {jax.__version__}"
        Console().print(table(("measurement", "size", "dtype", "median", "min–max"), cells, title))


if __name__ == "__main__":
    exit_with(main)
