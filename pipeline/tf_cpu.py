"""TensorFlow as this project uses it: on the CPU, quiet. Every other module takes `tf` from here.

Hidden from accelerators before its first op, because it would take the memory that JAX needs."""

import os
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

try:
    import tensorflow as tf
except ModuleNotFoundError as e:
    if e.name != "tensorflow":
        raise
    raise ModuleNotFoundError(
        "Reading shards needs TensorFlow, which is not installed: pip install 'infeed[read]'.", name="tensorflow"
    ) from e

__all__ = ["tf"]

for _kind in ("GPU", "TPU"):
    try:
        tf.config.set_visible_devices([], _kind)
    except RuntimeError:
        if tf.config.get_visible_devices(_kind):
            warnings.warn(
                f"TensorFlow ran before pipeline was imported and holds the {_kind}s, whose memory JAX needs. "
                "Import pipeline.datasets first.",
                RuntimeWarning,
                stacklevel=2,
            )
