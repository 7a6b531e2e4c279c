"""The Trainer: trains a Task, evaluates it, predicts with it, from any input. The front door of the package."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from pipeline.logs import logger
from pipeline.shards.errors import OptionError
from trainer.callbacks import Callback
from trainer.calls.alternating import Alternating, check_name, tell
from trainer.calls.call import Call
from trainer.calls.evaluation import Evaluation, compare_paddings
from trainer.calls.following import Waits, follow
from trainer.calls.owning import own
from trainer.calls.prediction import Prediction, check_predict
from trainer.calls.preflight import agree, facts_of
from trainer.calls.training import train_run
from trainer.checkpointing.checkpoint import Checkpoints
from trainer.cluster.polls import Polls
from trainer.cluster.preemption import Preemption
from trainer.cluster.store import open_store
from trainer.cluster.watchdog import Watchdog
from trainer.config import TrainerConfig, check_positive_int
from trainer.inputs import InputFn
from trainer.job import Job, Opened
from trainer.loop.compilation_cache import use_compilation_cache
from trainer.mesh import Placement
from trainer.ownership.ownership import Ownership
from trainer.results import EvalResult, TrainResult
from trainer.task import Task

__all__ = ["Trainer"]

log = logger("trainer")


class Trainer:
    """Trains, evaluates and predicts with `task` on these jax devices (default: all).

    Keeps nothing between calls but what is in the work directory, so each call goes on from the newest checkpoint.
    When SIGTERM reaches a process of the run, a call ends on all hosts with Preempted, a SystemExit of code 75: all
    that was done is saved, and the same program goes on from there. SIGINT (Ctrl-C) ends a call in the same way, with
    KeyboardInterrupt, after which other calls may be made; a second one exits immediately, with code 130. A program's
    own handlers of these signals are left alone, and in another thread than the main one there are none."""

    def __init__(
        self,
        task: Task,
        config: TrainerConfig,
        devices: Sequence[Any] | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.config = config
        if config.compilation_cache_dir:
            use_compilation_cache(config.compilation_cache_dir)
        self._job = Job(task, config, Placement.of(devices, config.model_parallelism), tuple(callbacks))
        others = (config.resolved_eval_batch_size, config.resolved_predict_batch_size)
        for batch in (config.global_batch_size, *others):
            self._job.placement.hosts(batch)  # a size that the devices do not divide fails here, not hours later
        if config.fast_dev_run:
            log.warning(
                "fast_dev_run: %d steps of training, and an evaluation of one batch with a model that has not learnt; "
                "no checkpoint and no events are written",
                config.fast_dev_run,
            )

    def train(self, input_fn: InputFn, *, steps: int | None = None, max_steps: int | None = None) -> TrainResult:
        """Trains `steps` more steps, or to `max_steps` in all (default: the config's), and saves a checkpoint.

        A run that was stopped goes on with the state, the random keys and the input position of its newest
        checkpoint, so the result is that of a straight run. Raises NanError, naming the step, before a broken state
        is saved; InputError for an input that ends early or changes its shapes; OwnerError, before anything is written,
        where another training owns the work directory."""
        return self._train(input_fn, _goal(steps, max_steps, self.config))

    def train_and_evaluate(
        self,
        train_input_fn: InputFn,
        eval_input_fn: InputFn,
        *,
        steps: int | None = None,
        max_steps: int | None = None,
        eval_every_steps: int | None = None,
        name: str | None = None,
    ) -> TrainResult:
        """Trains as `train` does, with one exact epoch of evaluation every eval_every_steps (default: as often as
        checkpoints by steps) and at the end. TrainResult.evaluations has their results.

        Each is of a checkpoint, saved just before, and TrainerConfig.keep_best keeps the best one. The training's input
        goes on where it was. One that a run was stopped before is made up when it goes on."""
        check_name(name)
        every = eval_every_steps or self.config.checkpoint_every_steps
        if eval_every_steps is not None:
            check_positive_int("eval_every_steps", eval_every_steps)

        def alternating(call: Call) -> Alternating:
            return Alternating(call, self._job, eval_input_fn, name, every)

        return self._train(train_input_fn, _goal(steps, max_steps, self.config), alternating)

    def _train(
        self,
        input_fn: InputFn,
        goal: Callable[[int], int],
        alternating: Callable[[Call], Alternating] | None = None,
    ) -> TrainResult:
        with self._call(saves=not self.config.fast_dev_run) as call:
            with call.preemption.leavable():
                own(call, self.config)
                start = 0 if self.config.fast_dev_run else call.checkpoints.resume_step()
                end = self.config.fast_dev_run or goal(start)
                training = self._job.open("train", input_fn, start) if start < end else None
                evaluating = alternating(call) if alternating else None
            inputs = [opened for opened in (training, evaluating and evaluating.opened) if opened]
            self._agree(call, inputs, start, end, eval_every_steps=evaluating and evaluating.every_steps)
            if evaluating and start:
                evaluating.make_up(start, end)
            if training:
                result = train_run(call, self._job, training, start, end, evaluating)
            else:
                log.info("nothing to train: the checkpoint of step %d has reached max_steps=%d", start, end)
                result = TrainResult(start, start, None, {}, None, 0)
            return replace(result, evaluations=tuple(evaluating.results)) if evaluating else result

    def evaluate(
        self, input_fn: InputFn, *, step: int | None = None, name: str | None = None, check_padding: bool = False
    ) -> EvalResult:
        """The metrics of one exact epoch, with the newest checkpoint or that of `step`.

        name: of several evaluations, each of another input; its events go to <workdir>/eval_<name>, else to eval.
        check_padding: run the epoch twice more, with NaN and with the largest values in the rows that fill the last
        batch, where the task otherwise sees zeros; EvaluationError unless all metrics have the same bits.
        Raises EvaluationError unless every record that is due counted exactly once (an input that cannot say what is
        due gives proven=False); CheckpointError where there is no checkpoint."""
        check_name(name)
        fast = self.config.fast_dev_run
        with self._call() as call:
            with call.preemption.leavable():
                step = 0 if fast else call.checkpoints.require(step)
                opened = self._job.open("eval", input_fn)
            self._agree(call, [opened], step, step, check_padding=check_padding)
            with call.preemption.leavable():
                if fast:
                    state = self._job.fresh_state(opened, call.check)
                else:
                    state = call.checkpoints.restore(step, self._job.abstract_state(opened)).state
                evaluation = Evaluation(call, self._job, opened, state.variables, step)
            result = evaluation.epoch()
            if check_padding:
                # A plain iterable is read up: input_fn makes the next.
                again = (lambda: None) if opened.resumable else lambda: self._job.open("eval", input_fn).source
                compare_paddings(evaluation, result, again)
            self._tell(call, result, name)
        return result

    def evaluate_continuously(
        self,
        input_fn: InputFn,
        *,
        name: str | None = None,
        timeout_seconds: float = 3600.0,
        poll_seconds: float = 10.0,
    ) -> Iterator[EvalResult]:
        """Evaluates the checkpoints that another process saves in the work directory, as they come.

        Of several new ones the newest; the log names those that are skipped. It ends after the checkpoint of
        TrainerConfig.max_steps, and when for timeout_seconds no new one has come. Every evaluation calls input_fn
        anew; all run the same program. Nothing is written but the events and, without a name, what keep_best goes by.
        One that is removed while it is read is left for a newer one. CheckpointError for one that is damaged, and
        where there has never been any."""
        check_name(name)
        waits = Waits(timeout_seconds, poll_seconds, self.config.stall_seconds)
        return follow(self._job, input_fn, self._call, self._agree, partial(self._tell, name=name), waits)

    def predict(
        self, input_fn: InputFn, *, keys: Sequence[str] | None = None, step: int | None = None, gather: bool = False
    ) -> Iterator[dict[str, Any]]:
        """What the task's predict_fn gives, one dict of NumPy values a record, in the order of the data set.

        With the newest checkpoint or that of `step`. Padding and masked bad records are left out; `_index` is the
        record's number, where the input numbers them. keys: only these predictions; default: all.
        With several hosts each gets the rows that its devices hold; gather: every host gets all. They iterate alike:
        the next is computed while a host works on one, and a host that stops waits for the others to stop, at most
        half of host_timeout_seconds; where they go on, all end with a HostError. Alone, it may be dropped at any time.
        Nothing is done before the first record is asked for. An array in a record is a view: copy what you keep.
        Raises EvaluationError, before the last records, unless each one that is due came exactly once; and what
        evaluate raises."""
        check_predict(self._job.task, keys)
        return self._predictions(input_fn, keys, step, gather)

    def _predictions(
        self, input_fn: InputFn, keys: Sequence[str] | None, step: int | None, gather: bool
    ) -> Iterator[dict[str, Any]]:
        with self._call() as call:
            with call.checkpoints:  # whoever stops early must not wait in them for the other hosts
                with call.preemption.leavable():
                    step = call.checkpoints.require(step)
                    opened = self._job.open("predict", input_fn)
                self._agree(call, [opened], step, step, keys=keys, gather=gather)
                with call.preemption.leavable():
                    variables = call.checkpoints.restore(step, self._job.abstract_state(opened)).state.variables
                    prediction = Prediction(call, self._job, opened, variables, keys, gather)
            yield from prediction.records()

    def _tell(self, call: Call, result: EvalResult, name: str | None) -> None:
        # keep_best is about one evaluation; those with names are others.
        if name is None:
            call.checkpoints.record(result.step, result.metrics)
        tell(self._job, name, result)

    @contextmanager
    def _call(self, saves: bool = False) -> Iterator[Call]:
        config, store = self.config, open_store()
        ownership = Ownership(config.workdir)
        checkpoints = Checkpoints(config, ownership.fence)
        # A failure is told before anything waits for the other hosts, as the end of a checkpoint does.
        with (
            Preemption(store, saves) as preemption,
            Watchdog(store, config.host_timeout_seconds, checkpoints.saving, preemption.check) as watchdog,
            ownership,  # until the last checkpoint is written
            checkpoints,
            watchdog.reporting(),
        ):
            preemption.within(watchdog.roll)
            yield Call(watchdog, preemption, Polls(watchdog.roll, preemption), checkpoints, ownership)
            preemption.check()  # it came too late for the loop; all is done, so nothing is lost

    def _agree(self, call: Call, inputs: Sequence[Opened], start: int, end: int, **others: Any) -> None:
        """Once a call: the hosts compare what they are about to do."""

        def facts() -> dict[str, Any]:
            return facts_of(self._job, inputs, start, end) | others

        agree(call.watchdog, facts, self.config.workdir, self.config.stall_seconds)


def _goal(steps: int | None, max_steps: int | None, config: TrainerConfig) -> Callable[[int], int]:
    """The last step of a run, from its first."""
    if steps is not None and max_steps is not None:
        raise OptionError(
            f"steps={steps} and max_steps={max_steps} are both given. Give one: steps counts from the newest "
            "checkpoint, max_steps from the very first run."
        )
    for name, value in (("steps", steps), ("max_steps", max_steps)):
        if value is not None:
            check_positive_int(name, value)
    end = max_steps or config.max_steps or config.fast_dev_run
    if steps is None and end is None:
        raise OptionError("no end is given. Give steps or max_steps to train, or max_steps in the TrainerConfig.")
    return lambda start: (end or 0) if steps is None else start + steps
