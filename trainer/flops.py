"""python -m trainer.flops: measures how fast JAX computes on a device, and how fast data reaches it.

TFLOP/s of matrix products and convolutions by dtype, GB/s of memory and of transfers, microseconds of a dispatch: the
limits of any training there. A multiplication and its addition are two FLOPs. Sizes that would take too long for their
share of --seconds are skipped, and the table says so. float32 is computed as JAX does by default, which is in TF32 on
GPUs and in bfloat16 on TPUs; float32_highest in float32 everywhere.

Each value is the median of three to seven repetitions. If they differ much, another program may be using the device.

--json prints the device and a list of measurements. Each has tflops_per_second, gigabytes_per_second or
microseconds_per_dispatch, the same with _min and _max, share_of_peak (0 to 1, of FLOPs only), and the reason if it was
skipped; unknown values are null."""

if __name__ == "__main__":
    from pipeline.ctrl_c import leave_at_once

    leave_at_once()  # before the imports: they take seconds

import json
import math
import os
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from pipeline.errors import OptionError, did_you_mean
from pipeline.installing import how_to_install
from pipeline.sizes import parse_bytes
from pipeline.tools.command import Console, Parser, exit_with, say
from trainer.measuring.choices import DTYPES, MEASUREMENTS
from trainer.measuring.rows import NOISY_SPREAD, Row, Unit

__all__ = ["EXAMPLES", "main"]

EXAMPLES = ("--only dispatch memory", "--only matmul --dtypes float32 --sizes 512 1000 --seconds 5 --json")
"""The command lines at the end of its help."""

_MIN_ARRAY = 4096
_UNITS: Mapping[Unit, str] = {
    "tflops_per_second": "TFLOP/s",
    "gigabytes_per_second": "GB/s",
    "microseconds_per_dispatch": "µs",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command. Raises InfeedError."""
    args = _parsed(argv)
    array_bytes = None if args.array is None else parse_bytes(args.array)
    if array_bytes is not None and array_bytes < _MIN_ARRAY:
        raise OptionError(f"--array={args.array} must be at least {_MIN_ARRAY} bytes.")
    device, count = _device(args.platform, args.device)
    from trainer.loop.flops import peak_tflops
    from trainer.measuring.plan import Plan, measure

    shown = _described(device, args.device, count) | {"peak_tflops": args.peak_tflops or peak_tflops(device)}
    # An accelerator is fast, but compiling for it tries many kernels.
    seconds = args.seconds or (30 if device.platform == "cpu" else 120)
    plan = Plan(args.only or [*MEASUREMENTS], args.dtypes, args.sizes, array_bytes, seconds)
    console, rows = Console(stderr=True), []
    with console.status(f"measuring for about {seconds:g} s") as status:
        for row in measure(plan, device, time.perf_counter):
            status.update(f"measured {row.measurement} {row.size}")
            peak = args.peak_tflops or (peak_tflops(device) if row.dtype == "bfloat16" else None)
            rows.append((row, row.share_of(peak)))
    if args.json:
        print(json.dumps(shown | {"measurements": [row.json(share) for row, share in rows]}))
    else:
        Console().print(_table_of(shown, rows))
    if noisy := sum(row.noisy for row, _ in rows):
        say(
            console,
            f"warning: {noisy} of {len(rows)} measurements (*) vary by more than {NOISY_SPREAD:.0%}: another program "
            f"may be using the device. The load average is {shown['load_average']:.1f} on {os.cpu_count()} CPUs.",
        )


def _parsed(argv: Sequence[str] | None) -> Namespace:
    parser = Parser("trainer.flops", __doc__, EXAMPLES, ("trainer", "trainer.checkpoints"))
    names = {"only": f"what to measure: {', '.join(MEASUREMENTS)} (default: all)"}
    names["dtypes"] = f"of {', '.join(DTYPES)} (default: those the device is made for)"
    for option, purpose in names.items():
        parser.add_argument(f"--{option}", nargs="+", metavar="NAME", help=purpose)
    parser.add_argument("--sizes", nargs="+", type=int, metavar="N", help="of square matrices, besides a small one")
    parser.add_argument("--array", metavar="SIZE", help="in memory (default: 256MiB on a CPU, otherwise 1024MiB)")
    parser.add_argument(
        "--seconds", type=float, help="about how long it may take (default: 30 on a CPU, otherwise 120)"
    )
    parser.add_argument("--platform", choices=("cpu", "cuda", "tpu"), help="default: the best that JAX finds")
    parser.add_argument("--device", type=int, default=0, help="which one, from 0 (default: the first)")
    parser.add_argument(
        "--peak-tflops", type=float, help="of the device in the dtypes measured (default: its bfloat16)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    for option, given, known in (("--only", args.only, MEASUREMENTS), ("--dtypes", args.dtypes, DTYPES)):
        for name in given or ():
            if name not in known:
                raise OptionError(f"{option}: there is no {name!r}.{did_you_mean(name, known)}")
    numbers = {"--sizes": args.sizes or (), "--seconds": (args.seconds,), "--peak-tflops": (args.peak_tflops,)}
    for option, value in ((option, value) for option, values in numbers.items() for value in values):
        if value is not None and not 0 < value < math.inf:
            raise OptionError(f"{option}={value} must be a number above 0.")
    return args


def _device(platform: Any, number: int) -> tuple[Any, int]:
    """The device of this number, and how many there are. Raises OptionError."""
    from trainer.cluster.distributed import Devices

    devices = Devices(platform=platform)
    try:
        devices.choose()
    except ModuleNotFoundError as error:
        raise OptionError(f"{error}. Install what training needs: {how_to_install('train')}.") from error
    devices.check()
    import jax

    found = jax.local_devices()
    if not 0 <= number < len(found):
        known = ", ".join(f"{place} ({device.device_kind})" for place, device in enumerate(found))
        raise OptionError(f"--device={number}: there is no such device. JAX finds here: {known}.")
    return found[number], len(found)


def _described(device: Any, number: int, count: int) -> dict[str, Any]:
    import jax

    named = {"device_kind": device.device_kind, "platform": device.platform, "device": number, "num_devices": count}
    return named | {"jax": jax.__version__, "load_average": os.getloadavg()[0]}


def _table_of(shown: Mapping[str, Any], rows: Sequence[tuple[Row, float | None]]) -> Table:
    """The measurements of a device. shown: what the JSON has about it. rows: each with its share of the peak, 0..1, if
    that is known."""
    count = shown["num_devices"]
    which = f"device {shown['device']}, one of {count} devices" if count > 1 else "the only device"
    title = f"{shown['device_kind']} ({shown['platform']}), {which}, JAX {shown['jax']}"
    table = Table(title=Text(title), title_justify="left")
    for column in ("measurement", "size", "dtype"):
        table.add_column(column, overflow="fold")
    shares = any(share is not None for _, share in rows)
    for column in ("median", "min–max", *["of peak"] * shares):
        table.add_column(column, justify="right", overflow="fold")
    for row, share in rows:
        what = f"{row.measurement.replace('_', ' ')}, {_UNITS[row.unit]}"
        of_peak = "" if share is None else f"{share:.1%}"
        cells = (what, row.size, row.dtype or "", *_values(row), *[of_peak] * shares)
        table.add_row(*map(Text, cells))
    return table


def _values(row: Row) -> tuple[str, str]:
    if row.median is None or row.low is None or row.high is None:
        return "skipped", row.skipped or ""
    return f"{row.median:.3g}", f"{row.low:.3g}–{row.high:.3g}{' *' * row.noisy}"


if __name__ == "__main__":
    exit_with(main)
