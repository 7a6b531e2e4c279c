"""What JAX has compiled once, tests find again. JAX warns of what it reads while another process writes it, and a
warning is an error in a test: so a process that runs tests has a cache of its own, and the programs that tests start
ignore the warning."""

__all__ = ["compile_all_alike", "keep_programs", "shared_cache"]


def keep_programs(directory: str) -> None:
    """Keeps the programs of this process in the directory."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_compilation_cache_dir", directory)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # jax may have found before that there is none


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
        "PYTHONWARNINGS": "ignore:Error reading persistent compilation cache:UserWarning",
    }
