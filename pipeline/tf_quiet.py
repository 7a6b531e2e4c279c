"""TensorFlow without log noise, for pipeline.tf_data. Other modules import `tf` from
pipeline.tf_cpu."""

import contextlib
import os
import sys

from pipeline.packages import how_to_install
from pipeline.quiet import quiet_libraries

__all__ = ["JAX_CAME_FIRST", "tf"]

JAX_CAME_FIRST = "jax" in sys.modules  # TensorFlow imports parts of it

# TensorFlow's libraries log a lot as they load (CPU features, no GPU driver), before they read any
# log level.
_level = os.environ.get("TF_CPP_MIN_LOG_LEVEL")
_verbose = _level == "0"
# JAX sets 1 when it is imported
_chosen = _level is not None and not (_level == "1" and "jax" in sys.modules)
if not _chosen:
    # Its errors also raise exceptions. In the log, each damaged image takes up to four lines that
    # name no record.
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

with contextlib.nullcontext() if _verbose else quiet_libraries():
    try:
        import tensorflow as tf
    except ModuleNotFoundError as e:
        if e.name != "tensorflow":
            raise
        raise ModuleNotFoundError(
            "Exports, pipeline.tf_data, TensorFlowOp and TFDS's own features need TensorFlow, "
            f"which is not installed. Install it: {how_to_install('tf')}.",
            name="tensorflow",
        ) from None
    tf.config.list_physical_devices()  # loads the rest
    # TensorFlow has read it by now. JAX has its own copy of the logging library, which reads it
    # later.
    if _level is None:
        del os.environ["TF_CPP_MIN_LOG_LEVEL"]
    else:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = _level
