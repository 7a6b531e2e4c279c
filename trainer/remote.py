"""Work directories in a bucket: what Orbax needs for one. A run on a local disk asks for none of it.

Orbax reaches gs:// by two ways at once: arrays by tensorstore, all else by etils, which takes TensorFlow where it is
installed (unless EPATH_USE_TF=false) and gcsfs elsewhere."""

import importlib.util
import os

from pipeline.shards.errors import OptionError

__all__ = ["is_remote", "prepare_orbax"]

# 1, 2, 4, ... 32 s: two minutes, as for our own requests. Tensorstore's own 32 retries are a quarter of an hour.
TENSORSTORE_RETRIES = {"max_retries": 7}


def is_remote(path: str) -> bool:
    """Whether a path is in a bucket."""
    return "://" in path


def prepare_orbax(workdir: str) -> None:
    """Before the first use of Orbax on gs://. OptionError where neither TensorFlow nor gcsfs is installed."""
    if _etils_takes_tensorflow():
        import pipeline.tf_cpu  # noqa: F401  # etils would let it take the accelerators' memory
    elif importlib.util.find_spec("gcsfs") is None:
        raise OptionError(
            f"workdir={workdir!r}: checkpoints in a bucket need TensorFlow or gcsfs. Install one of them: "
            "pip install 'infeed[read]' or 'infeed[gcs]'."
        )
    # Orbax has no option for it.
    from orbax.checkpoint._src.serialization import tensorstore_utils

    for context in (tensorstore_utils._BASE_TS_CONTEXT, tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT):
        context["gcs_request_retries"] = TENSORSTORE_RETRIES


def _etils_takes_tensorflow() -> bool:
    refused = os.environ.get("EPATH_USE_TF", "").lower() in ("false", "no", "f", "0")
    return not refused and importlib.util.find_spec("tensorflow") is not None
