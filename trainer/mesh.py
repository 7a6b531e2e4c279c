"""Devices, and which rows of a global batch are on which: a mesh of the axes "data" and "model".

The edge where jax's view becomes a Hosts; everything that reads data sees only that."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pipeline.hosts import Hosts
from pipeline.shards.errors import OptionError

__all__ = ["Placement"]


@dataclass(frozen=True)
class Placement:
    """Where arrays go: batches split over the data axis and copied along the model axis; the rest as asked for."""

    mesh: Mesh

    @classmethod
    def of(cls, devices: Sequence[Any] | None = None, model_parallelism: int = 1) -> "Placement":
        """Over these jax devices, or all there are: the first model_parallelism share a replica, and so on."""
        grid = np.asarray(jax.devices() if devices is None else devices)
        if grid.size % model_parallelism:
            fitting = ", ".join(str(n) for n in range(1, grid.size + 1) if grid.size % n == 0)
            raise OptionError(
                f"model_parallelism={model_parallelism} does not divide the {grid.size} devices. Allowed: {fitting}."
            )
        return cls(Mesh(grid.reshape(-1, model_parallelism), ("data", "model")))

    @property
    def replicated(self) -> NamedSharding:
        """A whole copy on every device."""
        return NamedSharding(self.mesh, P())

    @property
    def replicas(self) -> int:
        """In how many parts a batch is split: the size of the data axis."""
        return self.mesh.shape["data"]

    @property
    def on_cpu(self) -> bool:
        """Whether the devices are those of XLA:CPU."""
        return self.mesh.devices.flat[0].platform == "cpu"

    @property
    def runs_once(self) -> dict[str, Any]:
        """Compiler options of a program that runs once, such as a model's initialization.

        Most of its time LLVM optimizes: a small CNN was initialized in 0.8 instead of 2.3 s, with the same bits."""
        return {"xla_backend_optimization_level": 1} if self.on_cpu else {}

    def sharding(self, name: str, shape: tuple[int, ...], spec: P) -> NamedSharding:
        """`spec` on this mesh. OptionError, naming the array, for an unknown axis or a size that it does not divide."""
        if len(spec) > len(shape):
            raise OptionError(f"{name} has the shape {list(shape)}; its partition {spec} has more dimensions.")
        for size, axes in zip(shape, spec, strict=False):
            names = () if axes is None else (axes,) if isinstance(axes, str) else axes
            for axis in names:
                if axis not in self.mesh.shape:
                    raise OptionError(f"the partition {spec} of {name} names {axis!r}. The mesh has: data, model.")
            parts = math.prod(self.mesh.shape[axis] for axis in names)
            if size % parts:
                raise OptionError(
                    f"{name} has the shape {list(shape)}, which the partition {spec} cuts into {parts} parts: "
                    f"{size} is not divisible by {parts}."
                )
        return NamedSharding(self.mesh, spec)

    def rows(self, stacked: bool = False) -> NamedSharding:
        """A batch [B, ...] split by rows, or `stacked` batches [k, B, ...]."""
        return NamedSharding(self.mesh, P(None, "data") if stacked else P("data"))

    def hosts(self, global_batch: int) -> Hosts:
        """This host's place, with the rows that the sharding gives it. BatchSizeError where devices do not divide."""
        index, count = jax.process_index(), jax.process_count()
        Hosts(index, count, self.replicas, rows=()).check_batch(global_batch)
        slices = self.rows().addressable_devices_indices_map((global_batch,)).values()
        # Devices may hold the same rows; the host delivers them once.
        spans = sorted({index[0].indices(global_batch)[:2] for index in slices if index})
        rows: list[range] = []
        for start, stop in spans:
            if rows and rows[-1].stop == start:
                rows[-1] = range(rows[-1].start, stop)
            else:
                rows.append(range(start, stop))
        return Hosts(index, count, self.replicas, tuple(rows))

    def global_struct(self, host_struct: Mapping[str, Any], global_batch: int, k: int | None = None) -> Any:
        """The spec of a global batch (of k stacked ones) with its sharding, from the host's spec."""

        def widen(leaf: Any) -> jax.ShapeDtypeStruct:
            shape = (global_batch, *leaf.shape[1:])
            shape = shape if k is None else (k, *shape)
            return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=self.rows(k is not None))

        return jax.tree.map(widen, dict(host_struct))

    def scalar(self, value: np.generic) -> jax.Array:
        """A copy on every device of what is the same on every host."""
        return jax.make_array_from_callback((), self.replicated, lambda _: np.asarray(value))

    def place(self, host_batch: Mapping[str, Any], struct: Any) -> Any:
        """The host's rows as a part of the global arrays that `struct` describes."""
        if jax.process_count() == 1:  # half the time for the same arrays
            return jax.device_put(dict(host_batch), jax.tree.map(lambda leaf: leaf.sharding, struct))
        # Without the global shape a wrong mapping of rows would train on, on half a batch.
        return jax.tree.map(
            lambda rows, leaf: jax.make_array_from_process_local_data(leaf.sharding, rows, leaf.shape),
            dict(host_batch),
            struct,
        )
