"""Programs compiled by an earlier run, found again on disk."""

from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

__all__ = ["use_compilation_cache"]


def use_compilation_cache(directory: str) -> None:
    """From now on this process keeps all that it compiles in `directory`, and compiles nothing that is there.

    The setting is JAX's own and holds for the whole process."""
    compilation_cache.set_cache_dir(str(Path(directory).expanduser()))
    # By default what compiles within a second is not kept; a restart has dozens of these.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compilation_cache.reset_cache()  # JAX looks at the setting at its first compilation only
