"""What a process computes on, by flags. Used before anything else of jax."""

import os
from dataclasses import dataclass
from typing import Literal

from pipeline.errors import OptionError
from pipeline.packages import how_to_install


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Which devices this process uses. The program is the same on all kinds."""

    platform: Literal["cpu", "gpu", "cuda", "tpu"] | None = None
    """Where to compute. Default: the best platform that JAX finds."""
    num_devices: int | None = None
    """On the CPU: how many devices to simulate, for example to rehearse a run on that many."""

    def __post_init__(self) -> None:
        if self.num_devices is not None and (self.platform != "cpu" or self.num_devices < 1):
            raise OptionError(
                f"num_devices={self.num_devices} is given with platform={self.platform}. Only "
                "platform=cpu can simulate devices, one or more; other platforms use all that they "
                "have. Give --platform cpu, too."
            )

    def choose(self) -> None:
        """Configures JAX; call it before JAX is used for the first time."""
        import jax  # takes a second, for which --help need not wait

        if self.platform is not None:
            jax.config.update("jax_platforms", "cuda" if self.platform == "gpu" else self.platform)
        if self.num_devices is not None:
            jax.config.update("jax_num_cpu_devices", self.num_devices)
        # XLA's threads are as many as cores or devices. With one per device, an all-reduce waits
        # for ever once another task has taken one: on two cores, four devices hung in 9 of 20
        # evaluations, in none of 60 with twice as many.
        simulated = jax.config.jax_num_cpu_devices  # pyright: ignore[reportAttributeAccessIssue] -1: none
        os.environ.setdefault("NPROC", str(max(os.cpu_count() or 1, 2 * simulated)))

    def check(self) -> None:
        """Raises OptionError if there are no such devices. Call it after `join`: JAX looks for
        devices here."""
        import jax

        try:
            jax.devices()
        except (RuntimeError, AssertionError) as error:  # it asserts if it finds no GPU
            reason = (
                str(error).partition("\n")[0].partition(" (set JAX_PLATFORMS")[0]
                or "JAX finds no NVIDIA GPU"
            )
            platform = self.platform or f"{os.environ.get('JAX_PLATFORMS')} (of JAX_PLATFORMS)"
            known = {"tpu": ["tpu"], "gpu": ["cuda"], "cuda": ["cuda"]}
            extras = known.get(platform, ["cuda", "tpu"])
            raise OptionError(
                f"platform={platform} is not available on this machine: {reason.rstrip('.')}. "
                "Choose --platform cpu, or install what it needs: "
                f"{' or '.join(map(how_to_install, extras))}."
            ) from error
