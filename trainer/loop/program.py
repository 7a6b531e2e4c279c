"""A step as programs for the devices: one step, or k steps in one dispatch."""

from collections.abc import Callable, Collection
from typing import Any

import jax
from jax import lax

from trainer.config import LoopMode
from trainer.interrupts import Check, interruptible
from trainer.loop.step_flops import flops, inner_jaxprs
from trainer.mesh import Placement
from trainer.task import Step

__all__ = ["Program", "has_convolution"]


class Program:
    """A step compiled for one batch and, if it scans, for k stacked ones: at most two executables.

    They take exactly the shapes and shardings they were made for; nothing recompiles silently."""

    def __init__(
        self,
        step: Step,
        carry: Any,
        host_struct: Any,
        placement: Placement,
        *,
        global_batch: int,
        k: int,
        mode: LoopMode,
        outs: Callable[[bool], Any] | None = None,
    ) -> None:
        """outs(stacked): shardings of a step's outputs other than the carry. Default: replicated."""
        self.executables: dict[int, Any] = {}
        self._placement, self._step, self._host_struct, self._global_batch = placement, step, host_struct, global_batch
        self._outs = outs or (lambda _: placement.replicated)
        self._one_struct = placement.global_struct(host_struct, global_batch)
        self._carry = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), carry)
        self._one = self._jit(step, False).trace(self._carry, self._one_struct)
        slow_in_loops = placement.on_cpu and has_convolution(self._one.jaxpr)
        self._may_scan = mode == "scan" or (mode == "auto" and not slow_in_loops)
        self.lengthen(k)

    def lengthen(self, k: int) -> None:
        """Sets k steps per dispatch. Only before a dispatch of several steps is placed."""
        self.k, self.scans = k, k > 1 and self._may_scan
        self._many_struct = self._placement.global_struct(self._host_struct, self._global_batch, k)

    def compile(self, lengths: Collection[int], check: Check = lambda: None) -> None:
        """Compiles the programs for dispatches of these lengths. check: called meanwhile; it may raise."""
        if 1 not in self.executables and (not self.scans or 1 in lengths):
            self.executables[1] = interruptible(self._one.lower().compile, check)
        if self.k not in self.executables and self.scans and self.k in lengths:
            scan = self._jit(lambda carry, batches: lax.scan(self._step, carry, batches), True)
            lowered = scan.trace(self._carry, self._many_struct).lower()
            self.executables[self.k] = interruptible(lowered.compile, check)

    def flops(self) -> float:
        """Floating-point operations of one step on all devices; see `flops`."""
        return flops(self._one.jaxpr)

    def place(self, host_batch: Any, stacked: bool) -> Any:
        """Places the host's rows of one batch, or of k stacked ones, on the devices."""
        return self._placement.place(host_batch, self._many_struct if stacked else self._one_struct)

    def __call__(self, carry: Any, batches: tuple[Any, ...], stacked: bool) -> tuple[Any, list[Any]]:
        """Dispatches without waiting. A scan returns stacked scalars [k, ...]; otherwise there is a dict per step."""
        if stacked:
            carry, scalars = self.executables[self.k](carry, batches[0])
            return carry, [scalars]
        scalars_of = []
        for batch in batches:
            carry, scalars = self.executables[1](carry, batch)
            scalars_of.append(scalars)
        return carry, scalars_of

    def _jit(self, function: Callable[..., Any], stacked: bool) -> Any:
        shardings = (jax.tree.map(lambda x: x.sharding, self._carry), self._outs(stacked))
        return jax.jit(function, donate_argnums=0, out_shardings=shardings)


def has_convolution(jaxpr: Any) -> bool:
    """Whether a (closed) jaxpr contains a convolution, including its calls and branches."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    return any(
        equation.primitive.name == "conv_general_dilated" or any(map(has_convolution, inner_jaxprs(equation.params)))
        for equation in jaxpr.eqns
    )
