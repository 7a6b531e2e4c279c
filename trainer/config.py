"""The settings of a training run, saved with every checkpoint, and of an export. Those that are
Fixed have no flag: a recipe sets them.

Imports neither JAX nor NumPy, so that --help appears immediately."""

import dataclasses
import functools
import inspect
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from tyro.conf import Fixed

from pipeline.checks import check_choice, check_number, check_positive_int, did_you_mean
from pipeline.console.fields import shows_fields
from pipeline.errors import OptionError
from pipeline.storage.schemes import BUCKETS, PLACES

__all__ = [
    "LoopMode",
    "Model",
    "OnNan",
    "PrecisionName",
    "TrainerConfig",
    "check_positive_int",
    "seconds_of",
]

DATA, FSDP, MODEL = AXES = ("data", "fsdp", "model")
SIZE = re.compile(rf"\b({'|'.join(AXES)})=([1-9][0-9]*)\b")
Rule = tuple[str, tuple[tuple[str, ...], ...]]
"""A pattern of the paths of parameters, and for each of their dimensions the axes that split it."""
Model = Literal["params", "ema"]
"""Of a run: the parameters that it updates, or their average."""
PrecisionName = Literal["f32", "bf16", "bf16_params"]
"""See TrainerConfig.precision."""
LoopMode = Literal["auto", "scan", "step"]
"""See TrainerConfig.loop_mode."""
OnNan = Literal["raise", "skip", "ignore"]
"""See TrainerConfig.on_nan."""
T = TypeVar("T")
TIME = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)")
SECONDS = {"s": 1, "m": 60, "h": 3600}
STEPS_PER_LOOP = 100
# Any scheme that no storage has, and gs:/, into which pathlib turns it and which would name a local
# directory.
OTHER_PLACE = re.compile(rf"(?!({'|'.join(BUCKETS)})://[^/])[a-z][a-z0-9+.-]+:/")
LOCAL_PLACE = re.compile(r"(?![a-z][a-z0-9+.-]+:/).")


def axis_sizes(mesh: str | None) -> dict[str, int]:
    """The size of each axis that is given. Raises OptionError for another form than
    data=2,fsdp=4."""
    sizes = {axis: int(size) for axis, size in SIZE.findall(mesh or "")}
    if mesh is not None and ",".join(f"{axis}={size}" for axis, size in sizes.items()) != mesh:
        raise OptionError(
            f"mesh={mesh!r} is not of the form data=2,fsdp=4: give data, fsdp and model at most "
            "once."
        )
    return sizes


def partition_rules(texts: Iterable[str]) -> tuple[Rule, ...]:
    """Parses PATTERN=AXES, such as head/kernel=fsdp,model. Raises OptionError for another form and
    for other axes."""
    rules = []
    for text in texts:
        pattern, _, axes = text.rpartition("=")
        split = tuple(
            () if part in ("", "None") else tuple(part.split("+"))
            for part in axes.split(",")
            if axes
        )
        if not pattern or not set(AXES).issuperset(axis for part in split for axis in part):
            raise OptionError(
                f"partition={text!r} is not PATTERN=AXES. Give data, fsdp, model or None for each "
                "dimension, as in 'head/kernel=fsdp,model', or nothing for a complete copy: "
                "'norm/*='."
            )
        rules.append((pattern, split))
    return tuple(rules)


def _naming_the_nearest(kind: type[T]) -> type[T]:
    """Makes a dataclass suggest the nearest field when it is given an unknown one."""
    original_init = kind.__init__
    known = inspect.signature(kind).parameters

    @functools.wraps(original_init)
    def init(self: T, **values: Any) -> None:
        for name in values:
            if name not in known:
                raise OptionError(
                    f"{name!r} is not a setting of {kind.__name__}.{did_you_mean(name, known)}"
                )
        original_init(self, **values)

    kind.__init__ = init
    return kind


@_naming_the_nearest
@shows_fields
@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """How to train; the Task defines what to train."""

    workdir: str
    """Directory for checkpoints and events; may be in a bucket. A run that finds a checkpoint
    there resumes from it. One training run owns it at a time; a second one is refused."""
    global_batch_size: int
    """Records per training step, over all devices of all hosts. A run that resumes keeps it:
    another one may change the order of records, and is refused then. accumulate, devices and hosts
    may change."""
    eval_batch_size: int | None = None
    """Records per evaluation step, over all devices of all hosts. Default: global_batch_size."""
    predict_batch_size: Fixed[int | None] = None
    """Records per prediction step, over all devices of all hosts. Default: that of evaluation."""
    precision: PrecisionName = "f32"
    """f32: all in float32. bf16: layers compute in bfloat16; parameters, norms' statistics, the
    model's outputs, losses and the optimizer stay in float32. bf16_params: the parameters and the
    optimizer's statistics are bfloat16, too."""
    accumulate: int = 1
    """Compute each training batch as this many microbatches, one after the other, and update once
    with the sum of their gradients: the same training, in less memory. Batch norm normalizes each
    microbatch by itself."""
    ema_decay: float | None = None
    """Average the parameters over the steps with this decay (0.9999), which starts lower: at most
    (1 + n) / (10 + n) after n steps. The average is in the checkpoints. None: no average."""
    evaluate: Model = "ema"
    """With ema_decay, which parameters evaluation and prediction use: the averaged ones, or those
    of the last step."""
    max_steps: int | None = None
    """Train until this step, counted from the very first run."""
    max_epochs: int | None = None
    """Train for this many epochs, counted from the very first run, in place of max_steps. The log
    names the step."""
    max_time: Fixed[str | None] = None
    """Train for at most this time ("30s", "90m", "12h"), not counting the restore and the first
    compilation, then save and return. By host 0's clock."""
    iterations_per_loop: int | str = 100
    """Steps per dispatch, after which the host reads the results. Affects speed only, not the
    training. "10s": as many as take that long ("s", "m" or "h"), measured over the first ten."""
    checkpoint_every_steps: int | None = 1000
    """Steps between checkpoints; another one is saved at the end. None: none by steps."""
    checkpoint_every: str | None = "10m"
    """Time between checkpoints, in addition to those by steps, since the last one of either kind.
    By host 0's clock, at the end of a dispatch. None: none by time."""
    on_nan: OnNan = "raise"
    """What to do about a step with a non-finite loss, gradient or new state. raise: end with an
    error that names the step and the first such array; no checkpoint contains it. skip: keep the
    previous parameters and continue, at most 100 times in a row. ignore: do not check."""
    keep_max: int = 3
    """Number of newest checkpoints to keep."""
    keep_every_steps: Fixed[int | None] = None
    """Never remove checkpoints whose step is a multiple of this."""
    keep_best: str | None = None
    """Metric of the evaluation: also keep the checkpoint with its best value."""
    keep_best_mode: Literal["max", "min"] | None = None
    """Whether the largest or the smallest value of keep_best is the best. Needed only for metrics
    that do not state it; infeed's own do."""
    restore_step: int | None = None
    """Resume from the checkpoint of this step, not the newest. Later ones are removed when the run
    first saves; after that, a restart with the same value resumes from the newest again."""
    log_every: int = 100
    """Steps between log lines, rounded up to the end of a dispatch. TensorBoard has every step."""
    peak_tflops: Fixed[float | None] = None
    """Peak of one device in TFLOP/s, for the share of it that training reaches (MFU). Default: in
    bf16, if known."""
    profile_steps: str | None = None
    """Two steps, as in 100:120: trace from the end of the first to the end of the second into
    <workdir>/profile, for TensorBoard's profile plugin or XProf. Dispatches start and end there;
    multiples of iterations_per_loop trace complete ones."""
    fast_dev_run: int | None = None
    """Train only this many steps, then evaluate and predict one batch, to check that everything
    works. Starts from scratch and writes no checkpoint, events or result."""
    overfit_batches: int | None = None
    """Train only on this many first batches of the input, repeated unchanged: a model that cannot
    memorize them is broken. They stay in memory. Does not affect evaluation."""
    compilation_cache_dir: str | None = None
    """Local directory that caches compiled programs for the next run; host 0 writes to it. Anyone
    who can write there can run code here."""
    mesh: str | None = None
    """The sizes of the mesh's axes, as in data=2,fsdp=4. data has the devices that the others
    leave. A batch is split over data and fsdp. Every parameter of at least 65,536 numbers is split
    over fsdp as well, with the optimizer's statistics and its average, and gathered where it is
    used. Task.partition or partition split over model."""
    partition: tuple[str, ...] = ()
    """PATTERN=AXES: how to split the parameters whose paths match the pattern, in place of
    Task.partition and what fsdp splits. The first match decides. An axis, several as in fsdp+model,
    or None for each dimension: 'head/kernel=fsdp,model'."""
    seed: int = 0
    """Seed of the model and, through InputContext, of the input."""
    batch_axis: Fixed[dict[str, int]] = field(default_factory=dict, hash=False)
    """The axis that is the batch, by the array's name, where that is not the first: {"image": 3}
    splits images [height, width, channels, batch] along the last axis, without a transpose. Names
    in nested batches are paths: "photo/pixels". Losses, outputs, predictions and keys that begin
    with _ have rows first."""
    loop_mode: Fixed[LoopMode] = "auto"
    """scan: one program runs k steps. step: k asynchronous dispatches. auto: step for convolutions
    on CPU, whose gradients XLA runs 5-11x slower inside a loop; otherwise scan."""
    superbatch_bytes: Fixed[int | None] = None
    """Maximum bytes of a k-step super-batch on a device; limits iterations_per_loop. Up to three
    exist at a time. Default: 5 % of the memory that JAX may use there, at least 256 MiB."""
    input_workers: int | Literal["auto"] = "auto"
    """Processes that make this host's batches, with the same bits; 0: threads of this process.
    auto: by the cores, and what the first batches took."""
    cache: str | None = None
    """Keep records, as they are stored, for later epochs: "ram", or a directory on a local disk."""
    read_ahead_bytes: int | None = None
    """The most that the reading thread may hold. Default: 256 MB; in training more for a bucket,
    see train_dataset."""
    on_error: Literal["raise", "skip", "mask"] = "raise"
    """What to do with a record that is damaged or cannot be decoded. raise: end with an error that
    names it. skip: train on the next good one instead; evaluations leave it out. mask: leave it out
    of its batch. The log has all."""
    same_classes: bool = False
    """Take the numbers of classes as they are where only the model's data or only these data name
    them. Otherwise such data are refused, because their numbers may mean other classes."""
    stall_seconds: float = 600.0
    """How long to wait for a batch before the run ends with an error and the stacks of all
    threads."""
    work_seconds: float = 3600.0
    """How long anything else may take before the run ends with an error that names it: compiling,
    an evaluation's dispatch, a callback, a checkpoint, an export. All hosts wait as long."""
    host_timeout_seconds: float = 90.0
    """When a host fails or dies, all others end within this time. How long a dispatch may take,
    unless 20 times as long as is usual is more, or nothing is usual yet."""

    def __post_init__(self) -> None:
        self._check_places()
        self._check_times()
        self._check_batch_axis()
        _ = axis_sizes(self.mesh), partition_rules(self.partition)
        for name, kind in get_type_hints(type(self)).items():
            value = getattr(self, name)
            if value is None and kind in (int, float):
                raise OptionError(f"{name}=None is not a number.")
            if kind in (int, int | None) and name not in ("seed", "input_workers"):
                check_positive_int(name, value)
            if kind in (float, float | None) and name != "ema_decay":
                check_number(name, value, above=0)
            if get_origin(kind) is Literal:
                check_choice(name, value, get_args(kind))
        if self.profile_steps is not None and not self.profile_range:
            raise OptionError(
                f"profile_steps={self.profile_steps!r} is not two steps, the second above the "
                "first. Give them as '100:120', which traces steps 101 to 120."
            )
        if type(self.seed) is not int or not 0 <= self.seed < 2**32:
            raise OptionError(f"seed={self.seed!r} is not an int in 0..2**32 - 1.")
        workers = self.input_workers
        if workers != "auto" and (type(workers) is not int or workers < 0):
            raise OptionError(
                f"input_workers={workers!r} is neither an int of at least 0 nor 'auto'."
            )
        check_number("ema_decay", self.ema_decay, at_least=0, below=1, more=", such as 0.9999")

    def _check_places(self) -> None:
        for name in ("workdir", "cache", "compilation_cache_dir"):
            if isinstance(path := getattr(self, name), PathLike):
                object.__setattr__(self, name, fspath(path))  # settings are saved as JSON
        if not self.workdir:
            raise OptionError("workdir is empty. Give the directory for checkpoints and events.")
        if OTHER_PLACE.match(str(self.workdir)):  # a recipe's default is not a str
            raise OptionError(
                f"workdir={self.workdir!r} is neither a local directory nor in a bucket. Give "
                f"{PLACES}."
            )
        cache = self.compilation_cache_dir
        if cache is not None and not LOCAL_PLACE.match(cache):
            raise OptionError(
                f"compilation_cache_dir={cache!r} is not a local directory. Give one, such as "
                "~/.cache/infeed."
            )

    def _check_times(self) -> None:
        for name in ("max_time", "checkpoint_every"):
            if getattr(self, name) is not None:
                seconds_of(name, getattr(self, name))
        if self.loop_seconds is None:
            check_positive_int("iterations_per_loop", self.iterations_per_loop)

    def _check_batch_axis(self) -> None:
        if type(self.batch_axis) is not dict:
            raise OptionError(
                f"batch_axis={self.batch_axis!r} is not a dict of axes by name, as in {{'image': "
                "3}."
            )
        for name, axis in self.batch_axis.items():
            if str(name).startswith("_"):
                raise OptionError(
                    f"batch_axis names {name!r}, but keys that begin with _ have rows first. "
                    "Remove it."
                )
            if type(axis) is not int or axis < 0:
                raise OptionError(
                    f"batch_axis[{name!r}]={axis!r} must be an int of at least 0, the first axis."
                )

    @property
    def resolved_eval_batch_size(self) -> int:
        """eval_batch_size; default: that of training."""
        return self.eval_batch_size or self.global_batch_size

    @property
    def resolved_predict_batch_size(self) -> int:
        """predict_batch_size; default: that of evaluation."""
        return self.predict_batch_size or self.resolved_eval_batch_size

    def last_step(self, num_records: int | None) -> int | None:
        """The step at which training ends: that of max_epochs, for epochs of num_records, or
        max_steps.

        OptionError for max_epochs if the records are not known."""
        if self.max_epochs is None:
            return self.max_steps
        if num_records is None:
            raise OptionError(
                f"max_epochs={self.max_epochs}, but the input does not state how many records an "
                "epoch has. Give max_steps."
            )
        return max(1, round(self.max_epochs * num_records / self.global_batch_size))

    @property
    def averages(self) -> bool:
        """Whether the state has averaged parameters."""
        return self.ema_decay is not None

    @property
    def evaluated_model(self) -> Model:
        """What evaluation and prediction use."""
        return self.evaluate if self.averages else "params"

    @property
    def loop_seconds(self) -> float | None:
        """iterations_per_loop in seconds, if it is a time."""
        timed = isinstance(self.iterations_per_loop, str)
        return seconds_of("iterations_per_loop", self.iterations_per_loop) if timed else None

    @property
    def steps_per_loop(self) -> int:
        """iterations_per_loop, if it is a number; otherwise 100, which evaluation uses instead of a
        time."""
        steps = self.iterations_per_loop
        return steps if isinstance(steps, int) else STEPS_PER_LOOP

    @property
    def profile_range(self) -> range | None:
        """profile_steps as numbers; None if not given or not two steps."""
        match = re.fullmatch(r"(\d+):(\d+)", self.profile_steps or "")
        return range(int(match[1]), int(match[2])) if match else None

    def to_json(self) -> dict[str, Any]:
        """The resolved settings, for the checkpoint."""
        sizes = {
            "eval_batch_size": self.resolved_eval_batch_size,
            "predict_batch_size": self.resolved_predict_batch_size,
        }
        return dataclasses.asdict(self) | sizes


def seconds_of(name: str, value: object) -> float:
    """The seconds of a time such as "30s", "90m" or "1.5h". Raises OptionError for anything else
    and for zero."""
    match = TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None or not float(match[1]) > 0:
        raise OptionError(
            f"{name}={value!r} is not a time. Give a number above 0 with its unit, s, m or h, such "
            "as 30s or 1.5h."
        )
    return float(match[1]) * SECONDS[match[2]]


def settings(**values: Any) -> TrainerConfig:
    """A TrainerConfig with these values: the defaults of a recipe's flags.

    Without workdir, --workdir is a required flag. global_batch_size is 64 unless given. OptionError
    for an unknown name or a value that is not allowed."""
    import tyro

    return replace(TrainerConfig(workdir=tyro.MISSING, global_batch_size=64), **values)


@shows_fields
@dataclass(frozen=True, kw_only=True)
class Export:
    """What becomes a SavedModel, and where: a field of a recipe, whose fields become flags."""

    export_path: str | None = None
    """Where exports are published, in directories named by the time; may be in a bucket. Default:
    <workdir>/export. If given, a training run also exports its model when it ends.
    --checkpoint-path exports another checkpoint."""
    export_tolerance: float = 1e-5
    """The largest difference from the predictions of the trainer, as a share of the largest value.
    Nothing is published above it. On an accelerator, or with --precision bf16, 0.02 is reasonable;
    for signatures that decode images, it is the least."""

    def __post_init__(self) -> None:
        check_number("export_tolerance", self.export_tolerance, at_least=0, below=math.inf)
