"""Places arrays on a mesh of devices with the axes "data" and "model", and maps rows of a global batch to hosts.

Converts jax's view of the devices into a Hosts; code that reads data uses only that."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pipeline.errors import OptionError
from pipeline.hosts import Hosts
from trainer.batch_spec import ROWS_FIRST, BatchAxes


@dataclass(frozen=True)
class Placement:
    """Splits batches over the data axis and replicates them along the model axis; other arrays as specified.

    axes: along which the arrays of an input are split."""

    mesh: Mesh
    axes: BatchAxes = ROWS_FIRST

    @classmethod
    def of(
        cls, devices: Sequence[Any] | None = None, model_parallelism: int = 1, axes: BatchAxes = ROWS_FIRST
    ) -> "Placement":
        """Over these jax devices (default: all). Each model_parallelism consecutive devices form a replica."""
        grid = np.asarray(jax.devices() if devices is None else devices)
        if grid.size % model_parallelism:
            fitting = ", ".join(str(n) for n in range(1, grid.size + 1) if grid.size % n == 0)
            raise OptionError(
                f"model_parallelism={model_parallelism} does not divide the {grid.size} devices. Allowed: {fitting}."
            )
        return cls(Mesh(grid.reshape(-1, model_parallelism), ("data", "model")), axes)

    @property
    def replicated(self) -> NamedSharding:
        """A complete copy on every device."""
        return NamedSharding(self.mesh, P())

    @property
    def replicas(self) -> int:
        """Number of parts a batch is split into: the size of the data axis."""
        return self.mesh.shape["data"]

    @property
    def on_cpu(self) -> bool:
        """Whether the devices are CPUs."""
        return self.mesh.devices.flat[0].platform == "cpu"

    @property
    def runs_once(self) -> dict[str, Any]:
        """Compiler options for programs that run once, such as a model's initialization.

        LLVM's optimization takes most of the time: without it, a small CNN is initialized in 0.8 s instead of 2.3 s."""
        return {"xla_backend_optimization_level": 1} if self.on_cpu else {}

    def sharding(self, name: str, shape: tuple[int, ...], spec: P) -> NamedSharding:
        """`spec` on this mesh. Raises OptionError, which names the array, for unknown axes and indivisible sizes."""
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
                    f"{name} has the shape {list(shape)}, which the partition {spec} splits into {parts} parts: "
                    f"{size} is not divisible by {parts}."
                )
        return NamedSharding(self.mesh, spec)

    def rows(self, stacked: bool = False, axis: int = 0) -> NamedSharding:
        """The sharding by rows, along `axis`, of a batch [B, ...], or of `stacked` batches [k, B, ...]."""
        return NamedSharding(self.mesh, P(*[None] * (axis + stacked), "data"))

    def hosts(self, global_batch: int) -> Hosts:
        """This host, with its rows by the sharding. Raises BatchSizeError if the devices do not divide the batch."""
        index, count = jax.process_index(), jax.process_count()
        Hosts(index, count, self.replicas, rows=()).check_batch(global_batch)
        slices = self.rows().addressable_devices_indices_map((global_batch,)).values()
        # Several devices may hold the same rows; the host delivers them once.
        spans = sorted({index[0].indices(global_batch)[:2] for index in slices if index})
        rows: list[range] = []
        for start, stop in spans:
            if rows and rows[-1].stop == start:
                rows[-1] = range(rows[-1].start, stop)
            else:
                rows.append(range(start, stop))
        return Hosts(index, count, self.replicas, tuple(rows))

    def global_struct(self, host_struct: Mapping[str, Any], global_batch: int, k: int | None = None) -> Any:
        """The spec of a global batch, or of k stacked ones, with its sharding, from the host's spec."""

        def widen(leaf: Any, axis: int) -> jax.ShapeDtypeStruct:
            shape = (*leaf.shape[:axis], global_batch, *leaf.shape[axis + 1 :])
            shape = shape if k is None else (k, *shape)
            return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=self.rows(k is not None, axis))

        return self.axes.map(widen, host_struct)

    def scalar(self, value: np.generic) -> jax.Array:
        """Replicates a value that is equal on all hosts."""
        return jax.make_array_from_callback((), self.replicated, lambda _: np.asarray(value))

    def place(self, host_batch: Mapping[str, Any], struct: Any) -> Any:
        """Places the host's rows as its part of the global arrays in `struct`."""
        if jax.process_count() == 1:  # takes half the time
            return jax.device_put(dict(host_batch), jax.tree.map(lambda leaf: leaf.sharding, struct))
        # Without the global shape, a wrong mapping of rows would train on half a batch without an error.
        return jax.tree.map(
            lambda rows, leaf: jax.make_array_from_process_local_data(leaf.sharding, rows, leaf.shape),
            dict(host_batch),
            struct,
        )
