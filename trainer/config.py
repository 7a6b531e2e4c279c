"""The settings of a training run. They are saved with every checkpoint. Stdlib only, so that tools can read them."""

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.shards.errors import OptionError

__all__ = ["LoopMode", "OnNan", "TrainerConfig", "check_positive_int", "seconds_of"]

LoopMode = Literal["auto", "scan", "step"]
OnNan = Literal["raise", "skip", "ignore"]
CHOICES = {
    "loop_mode": ("auto", "scan", "step"),
    "on_nan": ("raise", "skip", "ignore"),
    "keep_best_mode": ("max", "min"),
}
TIME = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)")
SECONDS = {"s": 1, "m": 60, "h": 3600}
STEPS_PER_LOOP = 100
MiB = 1024 * 1024
# Any scheme but gs://, and gs:/, which pathlib makes of it and which would be a directory here.
OTHER_PLACE = re.compile(r"(?!gs://[^/])[a-z][a-z0-9+.-]+:/")
LOCAL_PLACE = re.compile(r"(?![a-z][a-z0-9+.-]+:/).")
POSITIVE_INTS = (
    "global_batch_size",
    "keep_max",
    "log_every",
    "superbatch_bytes",
    "model_parallelism",
)
OPTIONAL_POSITIVE_INTS = (
    "eval_batch_size",
    "predict_batch_size",
    "max_steps",
    "checkpoint_every_steps",
    "keep_every_steps",
    "restore_step",
    "fast_dev_run",
    "overfit_batches",
)


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """How to train; what to train is the Task."""

    workdir: str
    """Directory for checkpoints and events; it may be gs://bucket/dir. A run that finds a checkpoint there goes on from
    it. One training at a time owns it; a second one is refused."""
    global_batch_size: int
    """Records a training step, over all devices of all hosts."""
    eval_batch_size: int | None = None
    """Records an evaluation step, over all devices of all hosts. Default: global_batch_size."""
    predict_batch_size: int | None = None
    """Records a prediction step, over all devices of all hosts. Default: that of evaluation."""
    max_steps: int | None = None
    """Train until the state has made so many steps, counted from the very first run."""
    max_time: str | None = None
    """Train no longer than "30s", "90m", "12h", counted from the call, then save and return. By the clock of host 0."""
    iterations_per_loop: int | str = 100
    """Steps a dispatch: how often the host looks. Speed only; it does not change the training. "10s": as many as take
    so long ("s", "m" or "h"), measured over the first ten."""
    checkpoint_every_steps: int | None = 1000
    """Steps between checkpoints; one more is written at the end. None: only at the end."""
    checkpoint_every: str | None = None
    """Time between checkpoints ("10m"), beside those by steps. By the clock of host 0, at the end of a dispatch."""
    on_nan: OnNan = "raise"
    """What to do about a step whose loss, gradients or new state are not finite. raise: end with an error that names
    the step and the first such array; no checkpoint holds it. skip: leave the parameters as they were and go on, up to
    100 in a row. ignore: do not look."""
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
    profile_steps: str | None = None
    """Two steps, as in 100:120: what runs from the end of the first to the end of the second is traced into
    <workdir>/profile, for TensorBoard's profile plugin or XProf. Dispatches begin and end there: in multiples of
    iterations_per_loop, whole ones are seen."""
    fast_dev_run: int | None = None
    """Only so many steps of training, then an evaluation of one batch: to see that everything works. Starts anew, and
    writes no checkpoint, no events and no result."""
    overfit_batches: int | None = None
    """Train on the first so many batches of the input alone, again and again, as they came the first time: a model that
    cannot learn these by heart is broken. They stay in memory. Evaluation is as ever."""
    compilation_cache_dir: str | None = None
    """Local directory in which compiled programs are kept, so that the next run need not compile them; host 0 writes
    it. Who can write there can run code here."""
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
        check_workdir(self.workdir)
        self._check_times()
        if self.compilation_cache_dir is not None and not LOCAL_PLACE.match(self.compilation_cache_dir):
            raise OptionError(
                f"compilation_cache_dir={self.compilation_cache_dir!r} is not a local directory. Give one, as in "
                "~/.cache/infeed."
            )
        for name in POSITIVE_INTS:
            check_positive_int(name, getattr(self, name))
        for name in OPTIONAL_POSITIVE_INTS:
            if getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name))
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise OptionError(f"{name}={getattr(self, name)!r} is not one of {', '.join(allowed)}.")
        if self.profile_steps is not None and not self.profile_range:
            raise OptionError(
                f"profile_steps={self.profile_steps!r} is not two steps, the second above the first. Give them as in "
                "'100:120', which traces steps 101 to 120."
            )
        if type(self.seed) is not int or not 0 <= self.seed < 2**32:
            raise OptionError(f"seed={self.seed!r} is not an int in 0..2**32 - 1.")

    def _check_times(self) -> None:
        for name in ("stall_seconds", "save_seconds", "host_timeout_seconds"):
            if not getattr(self, name) > 0:
                raise OptionError(f"{name}={getattr(self, name)} is not allowed. It must be above 0.")
        for name in ("max_time", "checkpoint_every"):
            if getattr(self, name) is not None:
                seconds_of(name, getattr(self, name))
        if isinstance(self.iterations_per_loop, str):
            seconds_of("iterations_per_loop", self.iterations_per_loop)
        else:
            check_positive_int("iterations_per_loop", self.iterations_per_loop)

    @property
    def resolved_eval_batch_size(self) -> int:
        """eval_batch_size, or the training one where it is not given."""
        return self.eval_batch_size or self.global_batch_size

    @property
    def resolved_predict_batch_size(self) -> int:
        """predict_batch_size, or that of evaluation where it is not given."""
        return self.predict_batch_size or self.resolved_eval_batch_size

    @property
    def loop_seconds(self) -> float | None:
        """iterations_per_loop, where it is a time."""
        timed = isinstance(self.iterations_per_loop, str)
        return seconds_of("iterations_per_loop", self.iterations_per_loop) if timed else None

    @property
    def steps_per_loop(self) -> int:
        """iterations_per_loop, where it is a number; else what evaluation takes in its place."""
        return self.iterations_per_loop if isinstance(self.iterations_per_loop, int) else STEPS_PER_LOOP

    @property
    def profile_range(self) -> range | None:
        """profile_steps as numbers; None where it is not given, or not two steps."""
        found = re.fullmatch(r"(\d+):(\d+)", self.profile_steps or "")
        return range(int(found[1]), int(found[2])) if found else None

    def to_json(self) -> dict[str, Any]:
        """The settings as they were resolved, for the checkpoint."""
        sizes = {
            "eval_batch_size": self.resolved_eval_batch_size,
            "predict_batch_size": self.resolved_predict_batch_size,
        }
        return dataclasses.asdict(self) | sizes


def check_workdir(workdir: str) -> None:
    """Raises OptionError unless it is a local path or in a bucket."""
    if not workdir:
        raise OptionError("workdir is empty. Give the directory for checkpoints and events.")
    if OTHER_PLACE.match(str(workdir)):
        raise OptionError(
            f"workdir={workdir!r} is neither a local directory nor in a bucket. Give one of these: a path on "
            "a local disk, or gs://bucket/dir."
        )


def seconds_of(name: str, value: object) -> float:
    """The seconds of a time such as "30s", "90m" or "1.5h". OptionError for anything else, and for none."""
    found = TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None or not float(found[1]) > 0:
        raise OptionError(
            f"{name}={value!r} is not a time. Give a number above 0 with its unit, s, m or h, such as 30s or 1.5h."
        )
    return float(found[1]) * SECONDS[found[2]]


def check_positive_int(name: str, value: object) -> None:
    """Raises OptionError unless `value` is an int above 0. True is not an int here."""
    if type(value) is not int:
        raise OptionError(f"{name}={value!r} is a {type(value).__name__}. It must be an int above 0.")
    if value <= 0:
        raise OptionError(f"{name}={value} is not allowed. It must be an int above 0.")
