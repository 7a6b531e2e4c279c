"""What can be measured, by the names of the command's options. Needs no JAX: its help and errors appear immediately."""

from collections.abc import Mapping

__all__ = ["DTYPES", "MEASUREMENTS"]

MEASUREMENTS: Mapping[str, float] = {"matmul": 35, "convolution": 35, "memory": 10, "transfer": 15, "dispatch": 5}
"""The share of the time that each gets."""

DTYPES: Mapping[str, tuple[str, str]] = {
    "float32": ("float32", "default"),
    "float32_highest": ("float32", "highest"),
    "bfloat16": ("bfloat16", "default"),
    "float16": ("float16", "default"),
}
"""The dtype and the precision of jax.lax, by name."""
