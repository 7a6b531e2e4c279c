"""Which host reads which rows of the global batch: arithmetic only, no jax.

The trainer makes a Hosts once, at the edge, from its sharding; readers and tests build their
own."""

import math
from dataclasses import dataclass

from pipeline.checks import check_number
from pipeline.errors import BatchSizeError, OptionError

__all__ = ["ONE_HOST", "Hosts"]


@dataclass(frozen=True)
class Hosts:
    """One host of those that share a batch.

    index: its number, from 0. count: of hosts. devices: over all hosts, the number that a batch is
    split over; devices with the same rows count once. rows: the ranges of global batch rows on this
    host (a sharding may assign any rows to any process, and the same rows to several). None: host i
    takes the i-th equal slice."""

    index: int = 0
    count: int = 1
    devices: int = 1
    rows: tuple[range, ...] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise OptionError(
                f"host index {self.index} is not in 0..{self.count - 1} ({self.count} hosts)."
            )
        check_number("devices", self.devices, at_least=1)

    def check_batch(self, global_batch: int) -> None:
        """Raises BatchSizeError, with the nearest sizes that fit, unless devices and hosts divide
        the batch.

        With `rows` from a sharding, hosts may hold the same rows, so only devices count."""
        unit = self.devices if self.rows is not None else math.lcm(self.devices, self.count)
        if global_batch > 0 and global_batch % unit == 0:
            return
        down = global_batch // unit * unit
        up = -(-max(global_batch, 1) // unit) * unit
        nearest = f"{down}, {up}" if 0 < down != up else f"{up}"
        per_host = f" ({self.count} hosts x {unit // self.count})" if unit % self.count == 0 else ""
        raise BatchSizeError(
            f"global_batch={global_batch} is not divisible by {unit} devices{per_host}. Nearest "
            f"that are: {nearest}."
        )

    def host_rows(self, global_batch: int) -> tuple[range, ...]:
        """The ranges of global batch rows that this host delivers, in order.

        Raises BatchSizeError as check_batch does, or if `rows` are outside the batch."""
        self.check_batch(global_batch)
        if self.rows is None:
            host_batch = global_batch // self.count
            return (range(self.index * host_batch, (self.index + 1) * host_batch),)
        for rows in self.rows:
            if rows.step != 1 or not 0 <= rows.start < rows.stop <= global_batch:
                raise BatchSizeError(
                    f"rows {rows} of host {self.index} are not inside a global_batch of "
                    f"{global_batch}: these hosts share a larger batch. Leave out global_batch, or "
                    "give ctx.global_batch_size in an input_fn."
                )
        return self.rows


ONE_HOST = Hosts()
"""A single host with one device."""
