"""python -m trainer.device_speed: measures how fast JAX computes on a device, and how fast data reaches it.

TFLOP/s of matrix products by dtype, GB/s of memory and of transfers to the device, microseconds of a dispatch: the
limits of any training there. A multiplication and its addition are two FLOPs. Sizes that would take too long for their
share of --seconds are skipped. float32 is computed as JAX does by default, which is in TF32 on GPUs and in bfloat16 on
TPUs; float32_highest in float32 everywhere. Each value is the median of three to seven repetitions.

--json prints the device and a list of measurements. Each has tflops_per_second, gigabytes_per_second or
microseconds_per_dispatch, the same with _min and _max, share_of_peak (0 to 1, of FLOPs only), and the reason if it was
skipped; unknown values are null."""

if __name__ == "__main__":
    from pipeline.ctrl_c import leave_at_once

    leave_at_once()  # before the imports: they take seconds

import json
import math
import os
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
from rich.table import Table

from pipeline.errors import OptionError, did_you_mean, how_to_install
from pipeline.sizes import MiB, parse_bytes
from pipeline.tools.command import Console, Parser, exit_with, say, table

EXAMPLES = ("--only dispatch memory", "--only matmul --dtypes float32 --sizes 512 1000 --seconds 5 --json")
"""The command lines at the end of its help."""

MEASUREMENTS = {"matmul": 60, "memory": 15, "transfer": 15, "dispatch": 10}  # with their shares of the time
DTYPES = {"float32": "default", "float32_highest": "highest", "bfloat16": "default", "float16": "default"}  # precisions
DTYPES_OF = {"cpu": ["float32", "bfloat16"], "gpu": ["bfloat16", "float16", "float32", "float32_highest"]}
CPU_SIZES, SIZES, DISPATCHED = (256, 512, 1024, 2048), (1024, 2048, 4096, 8192), 16  # products per dispatch
UNITS = {"tflops_per_second": "TFLOP/s", "gigabytes_per_second": "GB/s", "microseconds_per_dispatch": "µs"}
MIN_REPETITIONS, MAX_REPETITIONS, REPETITION_SECONDS, MAX_CALLS = 3, 7, 0.05, 200
NOISY_SPREAD = 0.3  # of the median; on two cores, 9 of 25 measurements exceed it at a load of 2.4, and 20 at one of 10
Row = dict[str, Any]  # of the JSON
clock = time.perf_counter


def measure(args: Namespace, device: Any, seconds: float) -> Iterator[Row]:
    """The rows that the options ask for, each as soon as it is measured. seconds: about how long it may take."""
    cpu, names = device.platform == "cpu", args.only or [*MEASUREMENTS]
    array_bytes = parse_bytes(args.array) if args.array else (256 if cpu else 1024) * MiB
    for name in names:
        share = seconds * MEASUREMENTS[name] / sum(MEASUREMENTS[each] for each in names)
        if name == "matmul":
            small, *larger = CPU_SIZES if cpu else SIZES
            dtypes = args.dtypes or DTYPES_OF.get(device.platform, ["bfloat16", "float32", "float32_highest"])
            for dtype in dtypes:
                yield from matmuls(device, dtype, sorted({small, *(args.sizes or larger)}), share / len(dtypes))
        elif name == "memory":
            yield memory(device, array_bytes, share)
        elif name == "transfer":
            for size in sorted({min(size, array_bytes) for size in (MiB, 64 * MiB)}):
                yield transfer(device, size, share / 2)
        else:
            yield from dispatches(device, share)


def repeat(call: Callable[[Any], Any], value: Any, seconds: float) -> list[float]:
    """Seconds per call, of 3 to 7 repetitions. Each enqueues calls for about 50 ms, all with the result before."""
    import jax

    value, stop, taken = jax.block_until_ready(call(value)), clock() + seconds, []  # the first call compiles
    began = clock()
    value = jax.block_until_ready(call(value))
    count = max(1, min(MAX_CALLS, int(REPETITION_SECONDS / (clock() - began))))
    while len(taken) < MIN_REPETITIONS or (len(taken) < MAX_REPETITIONS and clock() + count * taken[-1] <= stop):
        began = clock()
        for _ in range(count):
            value = call(value)
        jax.block_until_ready(value)
        taken.append((clock() - began) / count)
    return taken


def row(
    measurement: str, size: str, dtype: str | None, unit: str, values: Sequence[float], *, skipped: str = ""
) -> Row:
    """values: of all repetitions, in the unit; none if it was skipped, for this reason."""
    median, low, high = (how(values) if values else None for how in (statistics.median, min, max))
    noisy = bool(values) and max(values) - min(values) > NOISY_SPREAD * statistics.median(values)
    named = {"measurement": measurement, "size": size, "dtype": dtype, unit: median, f"{unit}_min": low}
    return named | {f"{unit}_max": high, "repetitions": len(values), "noisy": noisy, "skipped": skipped or None}


def matmuls(device: Any, dtype: str, sizes: Sequence[int], seconds: float) -> Iterator[Row]:
    """Square matrices, from small to large: the speed of one tells whether there is time for the next."""
    import jax

    stop, speed, count = clock() + seconds, math.inf, 1 if device.platform == "cpu" else DISPATCHED
    run = jax.jit(products(dtype, count))
    for number, size in enumerate(sizes):
        flops, left, taken = 2.0 * size**3 * count, max(0.0, stop - clock()), []
        expected = (2 + MIN_REPETITIONS) * flops / speed
        skipped = f"would take {expected:.2g} s, {left:.2g} s are left" if expected > left else ""
        try:
            if not skipped:
                arrays = np.random.default_rng(0).standard_normal((2, size, size), np.float32)
                arrays[1] /= math.sqrt(size)  # products stay as large as the first
                given = [jax.device_put(array, device).astype(dtype.partition("_")[0]) for array in arrays]
                taken = repeat(lambda _, given=given: run(*given), None, left / (len(sizes) - number))
                speed = flops / statistics.median(taken)
        except (jax.errors.JaxRuntimeError, MemoryError) as error:
            skipped = str(error).partition("\n")[0] or "out of memory"
        values = [flops / each / 1e12 for each in taken]
        yield row("matmul", f"{size}x{size}", dtype, "tflops_per_second", values, skipped=skipped)


def products(dtype: str, count: int) -> Callable[[Any, Any], Any]:
    """left @ right @ right ..., of which XLA can neither drop nor combine any."""
    import jax

    dot = partial(jax.lax.dot, precision=DTYPES[dtype])
    return lambda left, right: reduce(lambda product, _: dot(product, right), range(count), left)


def memory(device: Any, num_bytes: int, seconds: float) -> Row:
    """Negates a float32 array in place: every byte is read once and written once, and both count."""
    import jax

    named = partial(row, "memory", f"{num_bytes / MiB:g} MiB", "float32", "gigabytes_per_second")
    try:
        negate = jax.jit(jax.numpy.negative, donate_argnums=0)
        taken = repeat(negate, jax.numpy.arange(num_bytes // 4, dtype="float32", device=device), seconds)
    except jax.errors.JaxRuntimeError as error:
        return named([], skipped=str(error).partition("\n")[0])
    return named([2 * num_bytes / each / 1e9 for each in taken])


def transfer(device: Any, size: int, seconds: float) -> Row:
    """Arrays of the host's pageable memory, one after another, as batches are. On a CPU, copies within memory."""
    import jax

    rng = np.random.default_rng(0)  # not aligned: a CPU's device would share aligned arrays, whatever it is told
    arrays = [rng.integers(0, 256, size + 1, np.uint8)[1:] for _ in range(max(2, 16 * MiB // size))]

    def to_device(_: object) -> None:
        for array in arrays:
            jax.block_until_ready(jax.device_put(array, device))

    values = [len(arrays) * size / each / 1e9 for each in repeat(to_device, None, seconds)]
    return row("host_to_device", f"{size / MiB:g} MiB", "uint8", "gigabytes_per_second", values)


def dispatches(device: Any, seconds: float) -> Iterator[Row]:
    """Of a scalar's addition, for a host that waits for each result, and one that runs ahead, as a training does."""
    import jax

    add_one = jax.jit(lambda number: number + 1)
    for size, call in ("synchronous", lambda number: jax.block_until_ready(add_one(number))), ("asynchronous", add_one):
        taken = repeat(call, jax.device_put(np.float32(0), device), seconds / 2)
        yield row("dispatch", size, None, "microseconds_per_dispatch", [each * 1e6 for each in taken])


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command. Raises InfeedError."""
    args = _parsed(argv)
    try:
        import jax
    except ModuleNotFoundError as error:
        raise OptionError(f"{error}. Install what training needs: {how_to_install('train')}.") from error
    from trainer.cluster.distributed import Devices
    from trainer.loop.program import peak_tflops

    (devices := Devices(platform=args.platform)).choose()
    devices.check()
    found = jax.local_devices()
    if not 0 <= args.device < len(found):
        known = ", ".join(f"{place} ({device.device_kind})" for place, device in enumerate(found))
        raise OptionError(f"--device={args.device}: there is no such device. JAX finds here: {known}.")
    device = found[args.device]
    shown = {"device_kind": device.device_kind, "platform": device.platform, "device": args.device}
    shown |= {"num_devices": len(found), "jax": jax.__version__, "load_average": os.getloadavg()[0]}
    shown["peak_tflops"] = args.peak_tflops or peak_tflops(device)
    seconds = args.seconds or (30 if device.platform == "cpu" else 120)  # of which compiling takes most
    console, rows = Console(stderr=True), []
    with console.status(f"measuring for about {seconds:g} s") as status:
        for measured in measure(args, device, seconds):
            status.update(f"measured {measured['measurement']} {measured['size']}")
            peak = args.peak_tflops or (shown["peak_tflops"] if measured["dtype"] == "bfloat16" else None)
            share = measured["tflops_per_second"] / peak if peak and measured.get("tflops_per_second") else None
            rows.append(measured | ({"share_of_peak": share} if "tflops_per_second" in measured else {}))
    if args.json:
        print(json.dumps(shown | {"measurements": rows}))
    else:
        Console().print(_table(shown, rows))
    if noisy := sum(each["noisy"] for each in rows):
        why = f"another program may be using the device. The load average is {shown['load_average']:.1f}"
        vary = f"{noisy} of {len(rows)} measurements (*) vary by more than {NOISY_SPREAD:.0%}"
        say(console, f"warning: {vary}: {why} on {os.cpu_count()} CPUs.")


def _parsed(argv: Sequence[str] | None) -> Namespace:
    parser = Parser("trainer.device_speed", __doc__, EXAMPLES, ("trainer", "trainer.checkpoints"))
    add, of_dtypes = parser.add_argument, f"of {', '.join(DTYPES)} (default: those the device is made for)"
    add("--only", nargs="+", metavar="NAME", help=f"what to measure: {', '.join(MEASUREMENTS)} (default: all)")
    add("--dtypes", nargs="+", metavar="NAME", help=of_dtypes)
    add("--sizes", nargs="+", type=int, metavar="N", help="of square matrices, besides a small one")
    add("--array", metavar="SIZE", help="in memory (default: 256MiB on a CPU, otherwise 1024MiB)")
    add("--seconds", type=float, help="about how long it may take (default: 30 on a CPU, otherwise 120)")
    add("--platform", choices=("cpu", "cuda", "tpu"), help="default: the best that JAX finds")
    add("--device", type=int, default=0, help="which one, from 0 (default: the first)")
    add("--peak-tflops", type=float, help="of the device in the dtypes measured (default: its bfloat16)")
    add("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    for option, given, known in (("only", args.only, MEASUREMENTS), ("dtypes", args.dtypes, DTYPES)):
        for name in {*(given or ())} - {*known}:
            raise OptionError(f"--{option}: there is no {name!r}.{did_you_mean(name, known)}")
    numbers = [("seconds", args.seconds), ("peak-tflops", args.peak_tflops)]
    for option, value in [*(("sizes", size) for size in args.sizes or ()), *numbers]:
        if value is not None and not 0 < value < math.inf:
            raise OptionError(f"--{option}={value} must be a number above 0.")
    if args.array and parse_bytes(args.array) < 4096:
        raise OptionError(f"--array={args.array} must be at least 4096 bytes.")
    return args


def _table(shown: Row, rows: Sequence[Row]) -> Table:
    """The measurements of a device, of which the JSON has `shown`."""
    count = shown["num_devices"]
    which = f"device {shown['device']}, one of {count} devices" if count > 1 else "the only device"
    title = f"{shown['device_kind']} ({shown['platform']}), {which}, JAX {shown['jax']}"
    shares, texts = any(each.get("share_of_peak") for each in rows), []
    for each in rows:
        unit = next(unit for unit in UNITS if unit in each)
        cells = [f"{each['measurement'].replace('_', ' ')}, {UNITS[unit]}", each["size"], each["dtype"] or ""]
        low, high, share = each[f"{unit}_min"], each[f"{unit}_max"], each.get("share_of_peak")
        found = each["skipped"] or f"{low:.3g}–{high:.3g}{' *' * each['noisy']}"
        cells += ["skipped" if each["skipped"] else f"{each[unit]:.3g}", found]
        texts.append([*cells, *["" if share is None else f"{share:.1%}"] * shares])
    return table(("measurement", "size", "dtype", "median", "min–max", *["of peak"] * shares), texts, title)


if __name__ == "__main__":
    exit_with(main)
