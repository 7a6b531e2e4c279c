"""TensorFlow as this project uses it: on the CPU, without log noise. Every other module imports `tf` from here.

Accelerators are hidden before its first op, because TensorFlow would take the memory that JAX needs."""

import contextlib
import os
import sys
import warnings

from pipeline.errors import how_to_install
from pipeline.logs import quiet_libraries

__all__ = ["tf"]


# TensorFlow's libraries log a lot as they load (CPU features, no GPU driver), before they read any log level.
_level = os.environ.get("TF_CPP_MIN_LOG_LEVEL")
_wanted = _level == "0"
_chosen = _level is not None and not (_level == "1" and "jax" in sys.modules)  # JAX sets 1 when it is imported
if not _chosen:
    # Its errors also raise exceptions. In the log, each damaged image takes up to four lines that name no record.
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

with contextlib.nullcontext() if _wanted else quiet_libraries():
    try:
        import tensorflow as tf
    except ModuleNotFoundError as e:
        if e.name != "tensorflow":
            raise
        raise ModuleNotFoundError(
            "Reading shards and exporting models need TensorFlow, which is not installed. Install it: "
            f"{how_to_install('read')}.",
            name="tensorflow",
        ) from e
    tf.config.list_physical_devices()  # loads the rest
    # TensorFlow has read it by now. JAX has its own copy of the logging library, which reads it later.
    if _level is None:
        del os.environ["TF_CPP_MIN_LOG_LEVEL"]
    else:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = _level

for _kind in ("GPU", "TPU"):
    try:
        tf.config.set_visible_devices([], _kind)
    except RuntimeError:
        if tf.config.get_visible_devices(_kind):
            warnings.warn(
                f"TensorFlow ran before pipeline was imported and has taken the {_kind}s, whose memory JAX needs. "
                "Import pipeline.datasets first.",
                RuntimeWarning,
                stacklevel=2,
            )
