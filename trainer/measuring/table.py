"""The measurements of a device as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from trainer.measuring.rows import Row, Unit

__all__ = ["table_of"]

_UNITS: Mapping[Unit, str] = {
    "tflops_per_second": "TFLOP/s",
    "gigabytes_per_second": "GB/s",
    "microseconds_per_dispatch": "µs",
}


def table_of(shown: Mapping[str, Any], rows: Sequence[tuple[Row, float | None]]) -> Table:
    """shown: what the JSON has about the device. rows: each with its share of the peak, 0..1, if that is known."""
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
        cells = (what, row.size, row.dtype or "", *_values(row), *[_percent(share)] * shares)
        table.add_row(*map(Text, cells))
    return table


def _values(row: Row) -> tuple[str, str]:
    if row.median is None or row.low is None or row.high is None:
        return "skipped", row.skipped or ""
    return f"{row.median:.3g}", f"{row.low:.3g}–{row.high:.3g}{' *' * row.noisy}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"
