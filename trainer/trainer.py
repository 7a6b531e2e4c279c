"""The Trainer, the package's main class: trains and evaluates a Task and predicts with it, from any
input."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from pipeline.checks import check_number, check_positive_int
from pipeline.errors import OptionError
from pipeline.logs import logger
from pipeline.machine import num_cores
from pipeline.shards.schema import Labels
from pipeline.user_code import ShortErrors
from trainer.callbacks import Callback
from trainer.checkpointing.listing import WhichStep
from trainer.checkpointing.warm_start import WarmStart
from trainer.config import Model, TrainerConfig, axis_sizes, partition_rules
from trainer.inputs import InputFn
from trainer.loop.evaluate import check_name, evaluate, evaluate_continuously, named_inputs
from trainer.loop.job import Job
from trainer.loop.loaded_model import LoadedModel
from trainer.loop.prediction import check_export, check_predict, predict
from trainer.loop.train import train
from trainer.mesh.batch_spec import BatchAxes, named_leaves
from trainer.mesh.placement import Placement
from trainer.reports.segments import Invocation
from trainer.results import EvalResult, EvaluatedRecords, ExportResult, TrainResult
from trainer.serving.publishing import PLATFORMS, ExportOptions
from trainer.task import Task, kind_of

__all__ = ["LoadedModel", "Trainer"]

log = logger("trainer")


class Trainer:
    """Trains, evaluates and predicts with `task` on these jax devices (default: all).

    config: its work directory has all state between calls, so each call resumes from the newest
    checkpoint. When a process of the run receives SIGTERM, the call ends on all hosts with
    Preempted, a SystemExit of code 75: all progress is saved, and the same program resumes from
    there. SIGINT (Ctrl-C) ends a call in the same way with KeyboardInterrupt, after which further
    calls are possible; a second one exits immediately with code 130. A program's own handlers of
    these signals are kept, and outside of the main thread none are installed.

    warm_start: the arrays that a run begins with if the work directory has no checkpoint.
    command: the recipe and options that segments.jsonl names."""

    def __init__(
        self,
        task: Task,
        config: TrainerConfig,
        devices: Sequence[Any] | None = None,
        callbacks: Sequence[Callback] = (),
        warm_start: WarmStart | None = None,
        command: Invocation | None = None,
    ) -> None:
        if not isinstance(config, TrainerConfig):
            raise OptionError(
                f"the config is {kind_of(config)}. Give Trainer(task, TrainerConfig(...))."
            )
        if isinstance(callbacks, Callback):
            raise OptionError(
                f"callbacks is a {type(callbacks).__name__}. Give a list: callbacks=[...]."
            )
        for callback in callbacks:
            if isinstance(callback, type):
                name = callback.__name__
                raise OptionError(f"callbacks has the class {name}. Give an object: {name}(...).")
        if not isinstance(warm_start, WarmStart | None):
            raise OptionError(
                f"warm_start is {kind_of(warm_start)}. Give WarmStart(init_from=...)."
            )
        self.config = config
        self._warm_start = warm_start or WarmStart()
        if config.compilation_cache_dir:
            compilation_cache.set_cache_dir(str(Path(config.compilation_cache_dir).expanduser()))
            # By default programs that compile within a second are not kept; a restart has dozens of
            # them.
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
            compilation_cache.reset_cache()  # JAX reads the setting only at its first compilation
        sizes = axis_sizes(config.mesh)
        rules = partition_rules(config.partition)
        placement = Placement.of(devices, sizes, BatchAxes(config.batch_axis), rules)
        self._job = Job(task, config, placement, tuple(callbacks), command)
        for batch in (
            config.global_batch_size,
            config.resolved_eval_batch_size,
            config.resolved_predict_batch_size,
        ):
            # a size that does not fit the devices fails here, not hours later
            self._job.placement.hosts(batch)
        self._job.check_microbatches()
        workers = config.input_workers
        if workers != "auto" and workers > (cores := num_cores()):
            log.warning(
                "%d input workers, but this process may use %d cores. 'auto', the default, "
                "measures how many help",
                workers,
                cores,
            )
        if config.fast_dev_run:
            log.warning(
                "fast_dev_run: trains %d steps; evaluates and predicts one batch with an untrained "
                "model; writes no checkpoint and no events",
                config.fast_dev_run,
            )

    def train(
        self,
        input_fn: InputFn,
        *,
        steps: int | None = None,
        max_steps: int | None = None,
        max_epochs: int | None = None,
    ) -> TrainResult:
        """Trains `steps` more steps, or to `max_steps` or `max_epochs` in total (default: the
        config's), and saves a checkpoint.

        With none of them, it trains until the input ends, on all hosts after the last batch that
        each of them has. A stopped run resumes with the state, random keys and input position of
        its newest checkpoint, so the result is that of an uninterrupted run. Raises NanError, which
        names the step, before a broken state is saved; InputError for a label outside of the
        classes, before a state that learned from it is saved, and for an input that ends early or
        changes its shapes; OwnerError, before anything is written, if another training run owns the
        work directory."""
        with ShortErrors():
            return train(self._job, input_fn, self._warm_start, steps, max_steps, max_epochs)

    def train_and_evaluate(
        self,
        train_input_fn: InputFn,
        eval_input_fn: InputFn | Mapping[str, InputFn],
        *,
        steps: int | None = None,
        max_steps: int | None = None,
        max_epochs: int | None = None,
        eval_every_steps: int | None = None,
        name: str | None = None,
    ) -> TrainResult:
        """Trains like `train`, and evaluates one exact epoch every eval_every_steps and at the end.

        eval_input_fn: one input, or several by name, of which keep_best uses the first.
        eval_every_steps: default checkpoint_every_steps. Each evaluation is of a checkpoint saved
        just before; TrainResult.evaluations has the results, and TrainerConfig.keep_best keeps the
        best checkpoint. The training input continues at its position. A resumed run first runs the
        evaluation that was due when it stopped."""
        inputs = named_inputs(eval_input_fn, name)
        every = eval_every_steps or self.config.checkpoint_every_steps
        check_positive_int("eval_every_steps", eval_every_steps)
        with ShortErrors():
            return train(
                self._job,
                train_input_fn,
                self._warm_start,
                steps,
                max_steps,
                max_epochs,
                inputs,
                every,
            )

    def state_arrays(self, input_fn: InputFn) -> dict[str, jax.ShapeDtypeStruct]:
        """Name -> shape, dtype and sharding of each array of the training's state; computes
        nothing.

        The parameters are "variables/params/...", as in checkpoints. input_fn: of the training."""
        with ShortErrors():
            return named_leaves(self._job.abstract_state(self._job.open("train", input_fn)))

    def evaluate(
        self,
        input_fn: InputFn,
        *,
        step: WhichStep | None = None,
        checkpoint_path: str | PathLike[str] | None = None,
        name: str | None = None,
        check_padding: bool = False,
        on_records: Callable[[EvaluatedRecords], None] | None = None,
    ) -> EvalResult:
        """Returns the metrics of one exact epoch.

        step: of the checkpoint; "best": that of keep_best; default: the newest.
        checkpoint_path: another work directory, or a checkpoint in it; keep_best ignores such an
            evaluation.
        name: distinguishes evaluations of several inputs; events go to <workdir>/eval_<name>,
            without a name to eval.
        check_padding: repeat the epoch with NaN and with the largest values in the rows that pad
            the last batch, where the task otherwise sees zeros. Raises EvaluationError if any
            metric is not bit-identical.
        on_records: gets the records that counted, after each dispatch.

        Raises EvaluationError unless every expected record counted exactly once (an input that does
        not know what to expect leads to proven=False), for labels outside of the classes, and if no
        record has a label; CheckpointError if there is no checkpoint, or its description is
        missing or another run's."""
        check_name(name)
        with ShortErrors():
            path = _as_text(checkpoint_path)
            return evaluate(self._job, input_fn, name, step, path, check_padding, on_records)

    def evaluate_continuously(
        self,
        input_fn: InputFn,
        *,
        name: str | None = None,
        timeout_seconds: float = 3600.0,
        poll_seconds: float = 10.0,
    ) -> Iterator[EvalResult]:
        """Evaluates new checkpoints in the work directory as another process saves them.

        Of several new ones it takes the newest; the log names the skipped ones. Ends after the
        checkpoint of TrainerConfig.max_steps, unless it has max_epochs, or when none has appeared
        for timeout_seconds. Every evaluation calls input_fn again; all run the same program. Writes
        only events and, without a name, the metrics for keep_best. Skips a checkpoint that is
        removed while being read. Raises CheckpointError for a damaged one, or if there never was
        one."""
        check_name(name)
        check_number("timeout_seconds", timeout_seconds, above=0)
        check_number("poll_seconds", poll_seconds, above=0)
        return evaluate_continuously(self._job, input_fn, name, timeout_seconds, poll_seconds)

    def predict(
        self,
        input_fn: InputFn,
        *,
        keys: Sequence[str] | None = None,
        step: WhichStep | None = None,
        checkpoint_path: str | PathLike[str] | None = None,
        gather: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """Yields the results of the task's predict_fn, a dict of NumPy values per record, in the
        order of the dataset.

        step, checkpoint_path: as in evaluate. Leaves out padding and masked bad records; `_index`
        is the record's number, if the input numbers them. keys: only these predictions; default:
        all. Computes nothing before the first record is requested. Arrays in a record are views:
        copy what you keep. With several hosts, each gets the rows on its devices, or all with
        `gather`. All must iterate in step: the next chunk is computed while a host processes one. A
        host that stops waits for the others to stop, at most half of host_timeout_seconds; if they
        continue, all end with a HostError. A single process may stop at any time. Raises
        EvaluationError, before the last records, unless each expected one came exactly once, and
        whatever evaluate raises."""
        check_predict(self._job.task, keys)
        return predict(self._job, input_fn, keys, step, _as_text(checkpoint_path), gather)

    def export(
        self,
        path: str,
        input_fn: InputFn,
        *,
        step: WhichStep | None = None,
        checkpoint_path: str | PathLike[str] | None = None,
        model: Model | None = None,
        keys: Sequence[str] | None = None,
        labels: Mapping[str, Labels] | None = None,
        tolerance: float = 1e-5,
        keep: int | None = None,
        platforms: Sequence[str] = PLATFORMS,
        assets_extra: Mapping[str, str] | None = None,
    ) -> ExportResult:
        """Publishes a SavedModel in <path>/<Unix seconds>, after a process without JAX has
        predicted records with it.

        input_fn: of the evaluation. Its parsing and ops become part of the export, and its first 21
            records are predicted.
        step, checkpoint_path: as in evaluate.
        model: default: what is evaluated; the averaged parameters, if both are.
        keys: only these predictions; default: all that depend on the model.
        labels: class names of predictions; those of "class" become the prediction "class_name".
        tolerance: the largest difference from what `predict` returns, as a share of the largest
            value; at least 0.02 where TensorFlow decodes images.
        keep: how many exports to keep in `path`; default: all.
        assets_extra: name -> path, also in a bucket, of files to copy into the export's directory
            assets.extra.

        Raises ExportError, before anything is published; and whatever predict raises."""
        check_export(self._job, keys)
        options = ExportOptions(path, model, keys, labels, tolerance, keep, platforms, assets_extra)
        # loads TensorFlow, while no host waits for another
        from trainer.loop.export import export_checkpoint

        with ShortErrors():
            return export_checkpoint(self._job, input_fn, options, step, _as_text(checkpoint_path))


def _as_text(path: str | PathLike[str] | None) -> str | None:
    return None if path is None else fspath(path)
