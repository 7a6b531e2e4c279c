"""Places arrays on a mesh of devices with the axes "data", "fsdp" and "model": maps rows of a
global batch to hosts, and splits the parameters of a model and what an optimizer keeps of them.

Converts jax's view of the devices into a Hosts; code that reads data uses only that."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.experimental.mesh_utils import create_device_mesh
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pipeline.checks import check_patterns
from pipeline.errors import OptionError
from pipeline.hosts import Hosts
from pipeline.sizes import MiB
from trainer.config import AXES, DATA, FSDP, Rule
from trainer.mesh.batch_spec import ROWS_FIRST, BatchAxes, named_leaves

ROWS = (DATA, FSDP)
"""The axes that split a batch."""
LEAST_SUPERBATCH = 256 * MiB
SUPERBATCH_SHARE = 0.05
FLOOR = 2**16  # numbers: to gather a smaller parameter costs more than to keep it


def axes_of(entry: Any) -> tuple[str, ...]:
    """The axes in an entry of a PartitionSpec."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


@dataclass(frozen=True)
class Placement:
    """Splits batches over the axes data and fsdp and replicates them along model; other arrays as
    specified.

    axes: along which the arrays of an input are split. rules: how to split parameters, before
    Task.partition."""

    mesh: Mesh
    axes: BatchAxes = ROWS_FIRST
    rules: Sequence[Rule] = ()

    @classmethod
    def of(
        cls,
        devices: Sequence[Any] | None = None,
        sizes: Mapping[str, int] = MappingProxyType({}),
        axes: BatchAxes = ROWS_FIRST,
        rules: Sequence[Rule] = (),
    ) -> "Placement":
        """Places on these jax devices in this order; default: all, neighbors on a TPU's network
        next to each other.

        sizes: of the axes, of which model varies fastest. data has the devices that the others
        leave."""
        grid = np.asarray(jax.devices() if devices is None else devices)
        positions = math.prod(sizes.values())
        fitting = [
            n
            for n in range(1, grid.size + 1)
            if grid.size % n == 0 and (DATA not in sizes or n == grid.size)
        ]
        if positions not in fitting:
            raise OptionError(
                f"the mesh {dict(sizes)} has {positions} positions, which do not fit {grid.size} "
                f"devices. Allowed: {', '.join(map(str, fitting))}."
            )
        shape = [{DATA: grid.size // positions, **sizes}.get(axis, 1) for axis in AXES]
        if devices is None:
            grid = create_device_mesh(shape, allow_split_physical_axes=True)
        return cls(Mesh(grid.reshape(shape), AXES), axes, rules)

    @property
    def replicated(self) -> NamedSharding:
        """A complete copy on every device."""
        return NamedSharding(self.mesh, P())

    @property
    def replicas(self) -> int:
        """Number of parts a batch is split into."""
        return math.prod(self.mesh.shape[axis] for axis in ROWS)

    @property
    def on_cpu(self) -> bool:
        """Whether the devices are CPUs."""
        return self.mesh.devices.flat[0].platform == "cpu"

    def superbatch_bytes(self) -> int:
        """The limit of a super-batch on this host's first device. Up to three exist at a time, and
        the model needs the rest."""
        stats = self.mesh.local_devices[0].memory_stats() or {}  # a CPU has none
        return max(LEAST_SUPERBATCH, int(SUPERBATCH_SHARE * stats.get("bytes_limit", 0)))

    @property
    def runs_once(self) -> dict[str, Any]:
        """Compiler options for programs that run once, such as a model's initialization.

        LLVM's optimization takes most of the time: without it, a small CNN is initialized in 0.8 s
        instead of 2.3 s."""
        return {"xla_backend_optimization_level": 1} if self.on_cpu else {}

    def sharding(self, name: str, shape: tuple[int, ...], spec: P) -> NamedSharding:
        """`spec` on this mesh. Raises OptionError, which names the array, for unknown axes and
        indivisible sizes."""
        if len(spec) > len(shape):
            raise OptionError(
                f"{name} has the shape {list(shape)}; its partition {spec} has more dimensions."
            )
        for size, axes in zip(shape, spec, strict=False):
            names = axes_of(axes)
            for axis in names:
                if axis not in AXES:
                    raise OptionError(
                        f"the partition {spec} of {name} names {axis!r}, not data, fsdp or model."
                    )
            parts = math.prod(self.mesh.shape[axis] for axis in names)
            if size % parts:
                raise OptionError(
                    f"{name} has the shape {list(shape)}, which the partition {spec} splits into "
                    f"{parts} parts: {size} is not divisible by {parts}."
                )
        return NamedSharding(self.mesh, spec)

    def rows(self, stacked: bool = False, axis: int = 0) -> NamedSharding:
        """The sharding by rows, along `axis`, of a batch [B, ...], or of `stacked` batches [k, B,
        ...]."""
        return NamedSharding(self.mesh, P(*[None] * (axis + stacked), ROWS))

    def hosts(self, global_batch: int) -> Hosts:
        """This host, with its rows by the sharding. Raises BatchSizeError if the devices do not
        divide the batch."""
        index = jax.process_index()
        count = jax.process_count()
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

    def global_struct(
        self, host_struct: Mapping[str, Any], global_batch: int, k: int | None = None
    ) -> Any:
        """The spec of a global batch, or of k stacked ones, with its sharding, from the host's
        spec."""

        def widen(leaf: Any, axis: int) -> jax.ShapeDtypeStruct:
            shape = (*leaf.shape[:axis], global_batch, *leaf.shape[axis + 1 :])
            shape = shape if k is None else (k, *shape)
            return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=self.rows(k is not None, axis))

        return self.axes.map(widen, host_struct)

    @contextmanager
    def in_context(self) -> Iterator[None]:
        """Programs that are traced inside may give with_sharding_constraint a PartitionSpec of this
        mesh."""
        # this mesh, where jax.shard_map has one of its axes
        outer = jax.sharding.get_abstract_mesh()
        with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh if outer.empty else outer):
            yield

    def scalar(self, value: np.generic) -> jax.Array:
        """Replicates a value that is equal on all hosts."""
        return jax.make_array_from_callback((), self.replicated, lambda _: np.asarray(value))

    def place(self, host_batch: Mapping[str, Any], struct: Any) -> Any:
        """Places the host's rows as its part of the global arrays in `struct`."""
        if jax.process_count() == 1:  # takes half the time
            return jax.device_put(
                dict(host_batch), jax.tree.map(lambda leaf: leaf.sharding, struct)
            )
        # Without the global shape, a wrong mapping of rows would train on half a batch without an
        # error.
        return jax.tree.map(
            lambda rows, leaf: jax.make_array_from_process_local_data(
                leaf.sharding, rows, leaf.shape
            ),
            dict(host_batch),
            struct,
        )


def split_parameters(
    params: Any, partition: Callable[[str, tuple[int, ...]], P], placement: Placement
) -> dict[str, NamedSharding]:
    """The sharding of each parameter: by the first rule that matches its name, else by `partition`
    and fsdp.

    Raises OptionError for a rule without a match, a partition that does not fit, and an axis that
    splits nothing."""
    shapes = {name: leaf.shape for name, leaf in named_leaves(params).items()}
    check_patterns((pattern for pattern, _ in placement.rules), shapes, "parameter")

    def spec_of(name: str, shape: tuple[int, ...]) -> P:
        if (ruled := spec_by(placement.rules, name)) is not None:
            return ruled
        spec = partition(name, shape)
        if math.prod(shape) < FLOOR:
            return spec
        return with_fsdp(spec, shape, placement.mesh.shape[FSDP])

    shardings = {
        name: placement.sharding(name, shape, spec_of(name, shape))
        for name, shape in shapes.items()
    }
    used = {axis for sharding in shardings.values() for axis in axes_in(sharding.spec)}
    for axis in AXES[1:]:
        if (size := placement.mesh.shape[axis]) > 1 and axis not in used:
            raise OptionError(
                f"the mesh has {axis}={size}, but no parameter is split over {axis}. Leave the "
                "axis out, or name what it splits: --partition 'PATTERN=AXES', or Task.partition."
            )
    return shardings


def spec_by(rules: Iterable[Rule], name: str) -> P | None:
    """The spec of the first rule that matches the name of a parameter; None if no rule does."""
    return next((P(*axes) for pattern, axes in rules if fnmatchcase(name, pattern)), None)


def with_fsdp(spec: P, shape: tuple[int, ...], parts: int) -> P:
    """The spec with fsdp along the largest dimension that it leaves complete and `parts` divides,
    if there is one."""
    axes = [*spec, *[None] * (len(shape) - len(spec))]
    free = [d for d in range(len(shape)) if axes[d] is None and shape[d] % parts == 0]
    if parts == 1 or FSDP in axes_in(spec) or not free:
        return spec
    axes[max(free, key=lambda d: shape[d])] = FSDP
    return P(*axes)


def axes_in(spec: P) -> set[str]:
    """The axes of a PartitionSpec."""
    return {axis for entry in spec for axis in axes_of(entry)}
