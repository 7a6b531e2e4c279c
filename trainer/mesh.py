"""Devices, and which rows of a global batch are on which: one mesh axis, "data".

The edge where jax's view becomes a Hosts; everything that reads data sees only that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pipeline.hosts import Hosts

__all__ = ["Placement"]


@dataclass(frozen=True)
class Placement:
    """Where arrays go: batches split over the data axis, everything else on every device."""

    mesh: Mesh

    @classmethod
    def of(cls, devices: Sequence[Any] | None = None) -> "Placement":
        """Over these jax devices, or all there are."""
        return cls(Mesh(np.asarray(devices or jax.devices()), ("data",)))

    @property
    def replicated(self) -> NamedSharding:
        """A whole copy on every device."""
        return NamedSharding(self.mesh, P())

    def rows(self, stacked: bool = False) -> NamedSharding:
        """A batch [B, ...] split by rows, or `stacked` batches [k, B, ...]."""
        return NamedSharding(self.mesh, P(None, "data") if stacked else P("data"))

    @property
    def local_devices(self) -> int:
        """Devices of this host."""
        return len(self.mesh.local_devices)

    def hosts(self, global_batch: int) -> Hosts:
        """This host's place, with the rows that the sharding gives it. BatchSizeError where devices do not divide."""
        whole = Hosts(jax.process_index(), jax.process_count(), self.mesh.size)
        whole.check_batch(global_batch)
        slices = self.rows().addressable_devices_indices_map((global_batch,)).values()
        # Devices may hold the same rows; the host delivers them once.
        spans = sorted({index[0].indices(global_batch)[:2] for index in slices if index})
        rows: list[range] = []
        for start, stop in spans:
            if rows and rows[-1].stop == start:
                rows[-1] = range(rows[-1].start, stop)
            else:
                rows.append(range(start, stop))
        return Hosts(whole.index, whole.count, whole.devices, tuple(rows))

    def global_struct(self, host_struct: Mapping[str, Any], global_batch: int, k: int | None = None) -> Any:
        """The spec of a global batch (of k stacked ones) with its sharding, from the host's spec."""

        def widen(leaf: Any) -> jax.ShapeDtypeStruct:
            shape = (global_batch, *leaf.shape[1:])
            shape = shape if k is None else (k, *shape)
            return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=self.rows(k is not None))

        return jax.tree.map(widen, dict(host_struct))

    def place(self, host_batch: Mapping[str, Any], struct: Any) -> Any:
        """The host's rows as a part of the global arrays that `struct` describes."""
        # Without the global shape a wrong mapping of rows would train on, on half a batch.
        return jax.tree.map(
            lambda rows, leaf: jax.make_array_from_process_local_data(leaf.sharding, rows, leaf.shape),
            dict(host_batch),
            struct,
        )
