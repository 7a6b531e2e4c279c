"""A step compiled for the devices: one step, or k steps in one dispatch."""

import operator
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from trainer.config import LoopMode
from trainer.loop.flops import flops, inner_jaxprs
from trainer.mesh.placement import Placement
from trainer.step.steps import ROWS
from trainer.task import Step


class Compiled:
    """A step compiled for one batch and, if it scans, for k stacked ones: at most two executables.

    They take exactly the shapes and shardings they were made for; nothing recompiles silently."""

    def __init__(
        self,
        step: Step,
        constants: tuple[Any, ...],
        carry: Any,
        host_struct: Any,
        placement: Placement,
        global_batch: int,
        mode: LoopMode,
        gather: bool = True,
    ) -> None:
        """constants: what the step takes before its carry, and only reads; carry: its arrays are
        donated. gather: whether every host gets the `_rows` that a step returns of all hosts, not
        only its own. Scalars come as one vector, because reading an array costs as much as a
        hundred numbers."""
        self.executables: dict[int, Any] = {}
        self._step = step
        self._placement = placement
        self._host_struct = host_struct
        self._global_batch = global_batch
        self._gather = gather
        self._scalars = dict[str, np.dtype]()  # those that the step returns as one vector
        self._one_struct = placement.global_struct(host_struct, global_batch)
        self._arguments = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
            (*constants, carry),
        )
        self._one = self._traced(operator.call, self._one_struct, stacked=False)
        slow_in_loops = placement.on_cpu and has_convolution(self._one.jaxpr)
        self._may_scan = mode == "scan" or (mode == "auto" and not slow_in_loops)
        self.lengthen(1)

    def lengthen(self, k: int) -> None:
        """Sets k steps per dispatch. Only before a dispatch of several steps is placed."""
        self.k = k
        self.scans = k > 1 and self._may_scan
        self._many_struct = self._placement.global_struct(self._host_struct, self._global_batch, k)

    def compile(self, lengths: Collection[int]) -> None:
        """Compiles the programs for dispatches of these lengths."""
        if 1 not in self.executables and (not self.scans or 1 in lengths):
            self.executables[1] = self._one.lower().compile()
        if self.k not in self.executables and self.scans and self.k in lengths:
            scan = self._traced(lax.scan, self._many_struct, stacked=True)
            self.executables[self.k] = scan.lower().compile()

    def flops(self) -> float:
        """Floating-point operations of one step on all devices; see `flops`."""
        return flops(self._one.jaxpr)

    def rows_bytes(self) -> int:
        """The bytes of the rows that one step returns, on each device."""
        _, (_, rows) = self._one.out_info
        num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(rows))
        return num_bytes // (1 if self._gather else self._placement.replicas)

    def place(self, host_batch: Any, stacked: bool) -> Any:
        """Places the host's rows of one batch, or of k stacked ones, on the devices."""
        return self._placement.place(host_batch, self._many_struct if stacked else self._one_struct)

    def __call__(
        self, carry: Any, batches: tuple[Any, ...], stacked: bool, *constants: Any
    ) -> tuple[Any, list[Any]]:
        """Dispatches without waiting. Returns the carry and, for `read`, what the steps return,
        which a scan stacks."""
        executable = self.executables[self.k if stacked else 1]
        outputs = []
        for batch in batches:
            carry, output = executable(*constants, carry, batch)
            outputs.append(output)
        return carry, outputs

    def read(self, returned: list[Any], stacked: bool) -> tuple[dict[str, Any], Any]:
        """What the steps of a dispatch returned besides the carry: their scalars by name, each
        [steps], and their rows on this host, each [rows, ...]. Waits for the devices."""
        host = jax.device_get([scalars for scalars, _ in returned])
        values = host[0] if stacked else jax.tree.map(lambda *steps: np.stack(steps), *host)
        rows = jax.tree.map(partial(_on_this_host, stacked), *[rows for _, rows in returned])
        if self._scalars:
            columns = zip(self._scalars.items(), np.ascontiguousarray(values.T), strict=True)
            values = {name: column.view(dtype) for (name, dtype), column in columns}
        return values, rows

    def _apart(self, *arguments: Any) -> tuple[Any, tuple[Any, Any]]:
        """The step, whose scalars, in one vector if all have 32 bits, are apart from its rows."""
        carry, scalars = self._step(*arguments)
        rows = scalars.pop(ROWS, {})
        small = (
            isinstance(x, jax.Array) and x.shape == () and x.dtype.itemsize == 4
            for x in scalars.values()
        )
        if not scalars or not all(small):
            return carry, (scalars, rows)
        self._scalars = {name: np.dtype(scalars[name].dtype) for name in sorted(scalars)}
        bits = [lax.bitcast_convert_type(scalars[name], jnp.int32) for name in self._scalars]
        return carry, (jnp.stack(bits), rows)

    def _traced(self, run: Callable[..., Any], batches: Any, stacked: bool) -> Any:
        """run(step, carry, batches): runs it for one batch, or for stacked ones."""

        def function(*arguments: Any) -> Any:
            *constants, carry, batches = arguments
            return run(partial(self._apart, *constants), carry, batches)

        place = self._placement
        carry = jax.tree.map(lambda x: x.sharding, self._arguments[-1])
        rows = place.replicated if self._gather else place.rows(stacked)
        jitted = jax.jit(
            function,
            donate_argnums=len(self._arguments) - 1,
            out_shardings=(carry, (place.replicated, rows)),
        )
        return jitted.trace(*self._arguments, batches)


def _on_this_host(stacked: bool, *steps: Array) -> np.ndarray:
    """The rows on this host's devices, each once and in order: [rows, ...]; those of several steps
    are concatenated."""
    axis = 1 if stacked else 0
    of_steps = []
    for array in steps:
        # Devices along the model axis hold the same rows.
        parts = {shard.index[axis].start or 0: shard.data for shard in array.addressable_shards}
        rows = np.concatenate(jax.device_get([parts[start] for start in sorted(parts)]), axis)
        of_steps.append(rows.reshape(-1, *rows.shape[2:]) if stacked else rows)
    return np.concatenate(of_steps)


def has_convolution(jaxpr: Any) -> bool:
    """Whether a (closed) jaxpr contains a convolution, including its calls and branches."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    return any(
        equation.primitive.name == "conv_general_dilated"
        or any(map(has_convolution, inner_jaxprs(equation.params)))
        for equation in jaxpr.eqns
    )
