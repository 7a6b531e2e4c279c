"""What JAX has compiled once, tests find again, whichever process of them compiled it. JAX warns of what it reads while
another process writes it, and a warning is an error in a test: so each process renames what it has written completely."""

import os
import pathlib

__all__ = ["compile_all_alike", "keep_programs", "shared_cache", "write_programs_completely"]


def keep_programs(directory: str) -> None:
    """Keeps the programs of this process in the directory."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    write_programs_completely()
    jax.config.update("jax_compilation_cache_dir", directory)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # jax may have found before that there is none


def write_programs_completely() -> None:
    """Lets no other process find a part of a program."""
    from jax._src import lru_cache

    def put(self, key, value):
        path = pathlib.Path(self.path, f"{key}{lru_cache._CACHE_SUFFIX}")
        if not path.exists():
            partial = path.with_name(f"{path.name}.{os.getpid()}")
            partial.write_bytes(value)
            partial.rename(path)

    setattr(lru_cache.LRUCache, "put", put)  # noqa: B010


def compile_all_alike() -> None:
    """Lets XLA_FLAGS decide for programs that run once, too: the trainer asks for more of LLVM than tests do."""
    from trainer.mesh.placement import Placement

    setattr(Placement, "runs_once", {})  # noqa: B010 (a property)


def shared_cache(directory: str) -> dict[str, str]:
    """The environment of processes that share what they compile."""
    return {
        "JAX_COMPILATION_CACHE_DIR": directory,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",  # nobody reads which line of ours an instruction comes from
    }
