"""The settings of a training run. They are saved with every checkpoint. Stdlib only, so that tools can read them."""

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.shards.errors import OptionError

__all__ = ["LoopMode", "TrainerConfig", "check_positive_int"]

LoopMode = Literal["auto", "scan", "step"]
LOOP_MODES = ("auto", "scan", "step")
MiB = 1024 * 1024
# Any scheme but gs://, and gs:/, which pathlib makes of it and which would be a directory here.
OTHER_PLACE = re.compile(r"(?!gs://[^/])[a-z][a-z0-9+.-]+:/")
POSITIVE_INTS = (
    "global_batch_size",
    "iterations_per_loop",
    "keep_max",
    "log_every",
    "superbatch_bytes",
    "model_parallelism",
)
OPTIONAL_POSITIVE_INTS = ("eval_batch_size", "max_steps", "checkpoint_every_steps", "keep_every_steps", "restore_step")


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """How to train; what to train is the Task."""

    workdir: str
    """Directory for checkpoints and events; it may be gs://bucket/dir. A run that finds a checkpoint there goes on from
    it."""
    global_batch_size: int
    """Records a training step, over all devices of all hosts."""
    eval_batch_size: int | None = None
    """Records an evaluation step, over all devices of all hosts. Default: global_batch_size."""
    max_steps: int | None = None
    """Train until the state has made so many steps, counted from the very first run."""
    iterations_per_loop: int = 100
    """Steps a dispatch: how often the host looks. Speed only; it does not change the training."""
    checkpoint_every_steps: int | None = 1000
    """Steps between checkpoints; one more is written at the end. None: only at the end."""
    keep_max: int = 3
    """Newest checkpoints to keep."""
    keep_every_steps: int | None = None
    """Checkpoints of steps that are multiples of it are kept for ever."""
    keep_best: str | None = None
    """An evaluation's metric: the checkpoint with its best value is kept as well."""
    keep_best_mode: Literal["max", "min"] = "max"
    """Whether the best keep_best is the largest or the smallest."""
    restore_step: int | None = None
    """Go on from the checkpoint of this step, not from the newest. Those after it are removed when the run first saves;
    from then on a restart with the same value goes on from the newest again."""
    log_every: int = 100
    """Steps between log lines, rounded up to the end of a dispatch. TensorBoard has every step."""
    model_parallelism: int = 1
    """Devices that hold one copy of the model together: the mesh's "model" axis. What is split over it says the Task's
    partition. The rest of the devices are its "data" axis."""
    seed: int = 0
    """Seeds the model and, through InputContext, the input."""
    loop_mode: LoopMode = "auto"
    """scan: one program runs k steps. step: k asynchronous dispatches. auto: step for convolutions on CPU, where
    XLA runs their gradients 5-11x slower inside a loop, else scan."""
    superbatch_bytes: int = 256 * MiB
    """Bytes of a k-step super-batch on one device; iterations_per_loop is cut to fit. Up to four are alive at once."""
    stall_seconds: float = 600.0
    """How long to wait for one batch before the run ends with an error and a dump of what every thread was doing."""
    save_seconds: float = 900.0
    """How long a checkpoint may take to be written, in the background, before the run ends with an error."""
    host_timeout_seconds: float = 90.0
    """A host that fails or dies ends all others within this time; half of it is how long one may be silent."""

    def __post_init__(self) -> None:
        if not self.workdir:
            raise OptionError("workdir is empty. Give the directory for checkpoints and events.")
        if OTHER_PLACE.match(str(self.workdir)):
            raise OptionError(
                f"workdir={self.workdir!r} is neither a local directory nor in a bucket. Give one of these: a path on "
                "a local disk, or gs://bucket/dir."
            )
        for name in POSITIVE_INTS:
            check_positive_int(name, getattr(self, name))
        for name in ("stall_seconds", "save_seconds", "host_timeout_seconds"):
            if not getattr(self, name) > 0:
                raise OptionError(f"{name}={getattr(self, name)} is not allowed. It must be above 0.")
        for name in OPTIONAL_POSITIVE_INTS:
            if getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name))
        if self.loop_mode not in LOOP_MODES:
            raise OptionError(f"loop_mode={self.loop_mode!r} is not one of {', '.join(LOOP_MODES)}.")
        if self.keep_best_mode not in ("max", "min"):
            raise OptionError(f"keep_best_mode={self.keep_best_mode!r} is not one of max, min.")
        if type(self.seed) is not int or not 0 <= self.seed < 2**32:
            raise OptionError(f"seed={self.seed!r} is not an int in 0..2**32 - 1.")

    @property
    def resolved_eval_batch_size(self) -> int:
        """eval_batch_size, or the training one where it is not given."""
        return self.eval_batch_size or self.global_batch_size

    def to_json(self) -> dict[str, Any]:
        """The settings as they were resolved, for the checkpoint."""
        return dataclasses.asdict(self) | {"eval_batch_size": self.resolved_eval_batch_size}


def check_positive_int(name: str, value: object) -> None:
    """Raises OptionError unless `value` is an int above 0. True is not an int here."""
    if type(value) is not int:
        raise OptionError(f"{name}={value!r} is a {type(value).__name__}. It must be an int above 0.")
    if value <= 0:
        raise OptionError(f"{name}={value} is not allowed. It must be an int above 0.")
