"""The devices that a command computes on, by its flags. Used before JAX looks for devices."""

import os
from dataclasses import dataclass
from typing import Literal

from pipeline.errors import OptionError
from pipeline.installing import how_to_install

__all__ = ["Devices", "check", "choose"]


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Which devices this process uses. The program is the same on all kinds."""

    platform: Literal["cpu", "cuda", "tpu"] | None = None
    """Where to compute. Default: the best platform that JAX finds."""
    num_devices: int | None = None
    """On the CPU: how many devices to simulate, for example to rehearse a run on that many."""

    def __post_init__(self) -> None:
        if self.num_devices is not None and self.platform != "cpu":
            raise OptionError(
                f"num_devices={self.num_devices} is given with platform={self.platform}. Only platform=cpu can "
                "simulate any number of devices; other platforms use all their devices. Give --platform cpu, too."
            )
        if self.num_devices is not None and self.num_devices < 1:
            raise OptionError(f"num_devices={self.num_devices} must be an int above 0.")


def choose(devices: Devices) -> None:
    """Configures JAX; call it before JAX is used for the first time."""
    import jax  # takes a second, for which --help need not wait

    if devices.platform is not None:
        jax.config.update("jax_platforms", devices.platform)
    if devices.num_devices is not None:
        jax.config.update("jax_num_cpu_devices", devices.num_devices)


def check(devices: Devices) -> None:
    """Raises OptionError if there are no such devices. Call it after `join`: JAX looks for devices here."""
    import jax

    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # it asserts if it finds no GPU
        reason = str(error).partition("\n")[0].partition(" (set JAX_PLATFORMS")[0] or "JAX finds no NVIDIA GPU"
        platform = devices.platform or f"{os.environ.get('JAX_PLATFORMS')} (of JAX_PLATFORMS)"
        extras = [name for name in ("cuda", "tpu") if name in platform] or ["cuda", "tpu"]
        raise OptionError(
            f"platform={platform} is not available on this machine: {reason.rstrip('.')}. Choose --platform cpu, or "
            f"install what it needs: {' or '.join(map(how_to_install, extras))}."
        ) from error
