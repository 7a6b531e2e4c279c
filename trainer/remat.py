"""Rematerialisation: which intermediate values the backward pass recomputes to save memory."""

from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
from flax import nnx

from pipeline.errors import check_choice

__all__ = ["Remat", "rematerialized"]

Remat = Literal["none", "dots", "full"]
"""none: keep all. dots: keep the results of products with parameters, recompute the rest. full: recompute all."""

_POLICIES = {"dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable, "full": None}


def rematerialized(layer: Callable[..., Any], remat: Remat) -> Callable[..., Any]:
    """`layer`, a function whose arguments are nnx modules and arrays, as the body of a scan over layers usually is.

    Returns the same values and gradients; the backward pass computes again what the policy does not keep."""
    check_choice("remat", remat, get_args(Remat))
    return layer if remat == "none" else nnx.remat(layer, policy=_POLICIES[remat])
