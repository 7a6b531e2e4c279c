"""A cache on disk of the programs that earlier runs compiled."""

from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

__all__ = ["use_compilation_cache"]


def use_compilation_cache(directory: str) -> None:
    """Makes JAX keep every program that this process compiles in `directory`, and reuse those that are there."""
    compilation_cache.set_cache_dir(str(Path(directory).expanduser()))
    # By default programs that compile within a second are not kept; a restart has dozens of them.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compilation_cache.reset_cache()  # JAX reads the setting only at its first compilation
