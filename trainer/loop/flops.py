"""The floating-point operations of a step, and the peak of a device.

They are counted in the trace of a step, on any device: XLA's own analysis of a program counts the
body of a loop once however often it runs, exists before compilation only on CPUs, and does not see
into the kernels that GPUs run for products of matrices."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

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
