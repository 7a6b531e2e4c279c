"""TensorFlow as this project uses it: on the CPU, quiet. Every other module takes `tf` from here.

Hidden from accelerators before its first op, because it would take the memory that JAX needs."""

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator

__all__ = ["tf"]


@contextlib.contextmanager
def _quiet_start() -> Iterator[None]:
    """Drops what TensorFlow's libraries say on stderr as they load: CPU features, no GPU driver.

    They log before they read any level. TF_CPP_MIN_LOG_LEVEL=0 shows it all."""
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        yield
        return
    sys.stderr.flush()
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


with _quiet_start():
    try:
        import tensorflow as tf
    except ModuleNotFoundError as e:
        if e.name != "tensorflow":
            raise
        raise ModuleNotFoundError(
            "Reading shards needs TensorFlow, which is not installed: pip install 'infeed[read]'.", name="tensorflow"
        ) from e
    tf.config.list_physical_devices()  # loads the rest

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
