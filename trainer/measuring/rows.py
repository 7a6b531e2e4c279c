"""One measurement as a row: of the table that people read, and of the JSON that programs do. Needs no JAX."""

from dataclasses import dataclass
from typing import Any, Literal

from trainer.measuring.repeating import Times

__all__ = ["NOISY_SPREAD", "Row", "Unit", "per_call", "rate", "skipped"]

Unit = Literal["tflops_per_second", "gigabytes_per_second", "microseconds_per_dispatch"]

NOISY_SPREAD = 0.3  # on two cores, 9 of 25 measurements exceed it at a load of 2.4, and 20 at one of 10


@dataclass(frozen=True)
class Row:
    """The median of one measurement in its unit, and the lowest and highest value; None if it was skipped.

    dtype: None where it does not matter. repetitions: number of timed calls. skipped: why there is no number."""

    measurement: str
    size: str
    dtype: str | None
    unit: Unit
    median: float | None = None
    low: float | None = None
    high: float | None = None
    repetitions: int = 0
    skipped: str | None = None

    @property
    def spread(self) -> float:
        """The distance between the lowest and the highest value, as a share of the median."""
        return (self.high - self.low) / self.median if self.median and self.high and self.low else 0.0

    @property
    def noisy(self) -> bool:
        """Whether the values differ so much that something else probably used the device, too."""
        return self.spread > NOISY_SPREAD

    def share_of(self, peak_tflops: float | None) -> float | None:
        """The median as a share of the peak, 0..1; None if one of them is unknown or the row is of another unit."""
        if self.unit != "tflops_per_second" or self.median is None or peak_tflops is None:
            return None
        return self.median / peak_tflops

    def json(self, share_of_peak: float | None) -> dict[str, Any]:
        """The row with its unit in the names of the values. Values are None where the measurement was skipped."""
        values = {self.unit: self.median, f"{self.unit}_min": self.low, f"{self.unit}_max": self.high}
        named = {"measurement": self.measurement, "size": self.size, "dtype": self.dtype}
        share = {"share_of_peak": share_of_peak} if self.unit == "tflops_per_second" else {}
        counts = {"repetitions": self.repetitions, "noisy": self.noisy, "skipped": self.skipped}
        return named | values | share | counts


def rate(measurement: str, size: str, dtype: str | None, unit: Unit, amount: float, times: Times) -> Row:
    """amount: FLOPs or bytes of one timed call. The unit is per second, of 10^12 FLOPs or 10^9 bytes."""
    scaled = amount / {"tflops_per_second": 1e12, "gigabytes_per_second": 1e9}[unit]
    median, low, high = (scaled / seconds for seconds in (times.median, times.longest, times.shortest))
    return Row(measurement, size, dtype, unit, median, low, high, times.repetitions)


def per_call(measurement: str, size: str, calls: int, times: Times) -> Row:
    """Microseconds of one dispatch, where a timed call made this many."""
    median, low, high = (seconds / calls * 1e6 for seconds in (times.median, times.shortest, times.longest))
    return Row(measurement, size, None, "microseconds_per_dispatch", median, low, high, times.repetitions)


def skipped(measurement: str, size: str, dtype: str | None, unit: Unit, reason: str) -> Row:
    """A row without values. reason: what follows "skipped:"."""
    return Row(measurement, size, dtype, unit, skipped=reason)
