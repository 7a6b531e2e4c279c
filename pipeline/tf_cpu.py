"""TensorFlow on the CPU, for exports, TFDS and TensorFlowOp.

Accelerators are hidden before its first op, because TensorFlow would take the memory that JAX
needs."""

import warnings

from pipeline.tf_quiet import tf

__all__ = ["tf"]

for _kind in ("GPU", "TPU"):
    try:
        tf.config.set_visible_devices([], _kind)
    except RuntimeError:
        if tf.config.get_visible_devices(_kind):
            warnings.warn(
                f"TensorFlow ran before pipeline was imported and has taken the {_kind}s, whose "
                "memory JAX needs. Import pipeline.tf_cpu first.",
                RuntimeWarning,
                stacklevel=2,
            )
