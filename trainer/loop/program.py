"""A step as programs for the devices: one step, or k steps in one dispatch; and its floating-point
operations.

Those are counted in its trace, on any device: XLA's own analysis of a program counts the body of a
loop once however often it runs, exists before compilation only on CPUs, and does not see into the
kernels that GPUs run for products of matrices."""

import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from trainer.config import LoopMode
from trainer.mesh.placement import Placement
from trainer.task import Step

# Dense bfloat16 in TFLOP/s of what jax counts as one device, by its device_kind.
PEAKS = {
    "TPU v4": 275,  # cloud.google.com/tpu/docs/v4
    "TPU v5 lite": 197,  # cloud.google.com/tpu/docs/v5e
    "TPU v5": 459,  # cloud.google.com/tpu/docs/v5p
    "TPU v5p": 459,
    "TPU v6 lite": 918,  # cloud.google.com/tpu/docs/v6e
    "NVIDIA A100-SXM4-40GB": 312,  # NVIDIA A100 Tensor Core GPU data sheet, all four models
    "NVIDIA A100-SXM4-80GB": 312,
    "NVIDIA A100-PCIE-40GB": 312,
    "NVIDIA A100 80GB PCIe": 312,
    # NVIDIA H100 data sheet, SXM; it lists 1,979 with sparsity, as below
    "NVIDIA H100 80GB HBM3": 989,
    "NVIDIA H200": 989,  # NVIDIA H200 data sheet, SXM
    "NVIDIA L4": 121,  # NVIDIA L4 data sheet; it lists 242 with sparsity
}


class Program:
    """A step compiled for one batch and, if it scans, for k stacked ones: at most two executables.

    They take exactly the shapes and shardings they were made for; nothing recompiles silently."""

    def __init__(
        self,
        step: Step,
        carry: Any,
        host_struct: Any,
        placement: Placement,
        global_batch: int,
        k: int,
        mode: LoopMode,
        outs: Callable[[bool], Any] | None,
    ) -> None:
        """outs(stacked): shardings of a step's outputs other than the carry. None: they are
        replicated, and scalars in a flat dict come as one vector, because reading an array costs as
        much as a hundred numbers."""
        self.executables: dict[int, Any] = {}
        self._placement = placement
        self._host_struct = host_struct
        self._global_batch = global_batch
        self._scalars = dict[str, np.dtype]()  # those that the step returns as one vector
        self._step = step if outs else self._in_one_vector(step)
        self._outs = outs or (lambda _: placement.replicated)
        self._one_struct = placement.global_struct(host_struct, global_batch)
        self._carry = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), carry
        )
        self._one = self._jit(self._step, False).trace(self._carry, self._one_struct)
        slow_in_loops = placement.on_cpu and has_convolution(self._one.jaxpr)
        self._may_scan = mode == "scan" or (mode == "auto" and not slow_in_loops)
        self.lengthen(k)

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
            scan = self._jit(lambda carry, batches: lax.scan(self._step, carry, batches), True)
            lowered = scan.trace(self._carry, self._many_struct).lower()
            self.executables[self.k] = lowered.compile()

    def flops(self) -> float:
        """Floating-point operations of one step on all devices; see `flops`."""
        return flops(self._one.jaxpr)

    def place(self, host_batch: Any, stacked: bool) -> Any:
        """Places the host's rows of one batch, or of k stacked ones, on the devices."""
        return self._placement.place(host_batch, self._many_struct if stacked else self._one_struct)

    def __call__(
        self, carry: Any, batches: tuple[Any, ...], stacked: bool
    ) -> tuple[Any, list[Any]]:
        """Dispatches without waiting. Returns the carry and, for `read`, what the steps return,
        which a scan stacks."""
        if stacked:
            carry, scalars = self.executables[self.k](carry, batches[0])
            return carry, [scalars]
        scalars_of = []
        for batch in batches:
            carry, scalars = self.executables[1](carry, batch)
            scalars_of.append(scalars)
        return carry, scalars_of

    def read(self, returned: list[Any], stacked: bool) -> Any:
        """What the steps of a dispatch returned besides the carry, each array [steps, ...]. Waits
        for the devices."""
        host = jax.device_get(returned)
        values = host[0] if stacked else jax.tree.map(lambda *steps: np.stack(steps), *host)
        if not self._scalars:
            return values
        columns = zip(self._scalars.items(), np.ascontiguousarray(values.T), strict=True)
        return {name: column.view(dtype) for (name, dtype), column in columns}

    def _in_one_vector(self, step: Step) -> Step:
        def with_vector(carry: Any, batch: Any) -> tuple[Any, Any]:
            carry, scalars = step(carry, batch)
            small = (
                isinstance(x, jax.Array) and x.shape == () and x.dtype.itemsize == 4
                for x in scalars.values()
            )
            if not scalars or not all(small):
                return carry, scalars
            self._scalars = {name: np.dtype(scalars[name].dtype) for name in sorted(scalars)}
            bits = [lax.bitcast_convert_type(scalars[name], jnp.int32) for name in self._scalars]
            return carry, jnp.stack(bits)

        return with_vector

    def _jit(self, function: Callable[..., Any], stacked: bool) -> Any:
        shardings = (jax.tree.map(lambda x: x.sharding, self._carry), self._outs(stacked))
        return jax.jit(function, donate_argnums=0, out_shardings=shardings)


def has_convolution(jaxpr: Any) -> bool:
    """Whether a (closed) jaxpr contains a convolution, including its calls and branches."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    return any(
        equation.primitive.name == "conv_general_dilated"
        or any(map(has_convolution, inner_jaxprs(equation.params)))
        for equation in jaxpr.eqns
    )


def flops(jaxpr: Any) -> float:
    """The operations of products of matrices and convolutions in a (closed) jaxpr, over all
    devices: two per multiply-add.

    Counts what is computed: a rematerialized product twice, the largest branch of a condition, the
    body of a scan as often as it runs, that of a while_loop once. Leaves out the kernels of Pallas
    and cuDNN."""
    return sum(map(_flops_of, getattr(jaxpr, "jaxpr", jaxpr).eqns))


def _flops_of(equation: Any) -> float:
    name = equation.primitive.name
    params = equation.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        return 2 * equation.outvars[0].aval.size * math.prod(shape[d] for d in contracted)
    if name == "conv_general_dilated":
        return _convolution(equation)
    inner = [] if name == "pallas_call" else [flops(each) for each in inner_jaxprs(params)]
    if name == "cond":
        return max(inner)
    times = {"scan": "length", "shard_map": "mesh"}.get(name)
    return sum(inner) * (getattr(params[times], "size", params[times]) if times else 1)


def _convolution(equation: Any) -> float:
    left, right = (var.aval.shape for var in equation.invars)
    params = equation.params
    of_left, of_right, of_out = params["dimension_numbers"]
    out = equation.outvars[0].aval.shape
    axes = zip(of_left[2:], of_right[2:], of_out[2:], strict=True)
    names = ("window_strides", "padding", "lhs_dilation", "rhs_dilation")
    windows = zip(*(params[name] for name in names), strict=True)
    taps = math.prod(
        _taps(left[a], right[b], out[c], *window)
        for (a, b, c), window in zip(axes, windows, strict=True)
    )
    return 2 * out[of_out[0]] * out[of_out[1]] * right[of_right[1]] * taps


def _taps(
    left: int,
    right: int,
    out: int,
    stride: int,
    padding: tuple[int, int],
    spread: int,
    dilation: int,
) -> int:
    """How many pairs, in one dimension, of an output and a weight meet an element, not padding or a
    gap between two."""
    at = np.arange(out)[:, None] * stride + np.arange(right) * dilation - padding[0]
    return int(np.sum((at >= 0) & (at <= (left - 1) * spread) & (at % spread == 0)))


def inner_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """Those of an equation's calls, branches and bodies."""
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(item, "eqns") or hasattr(item, "jaxpr"):
                yield item
