"""Training, from the newest checkpoint to the last step, or to the end of the input."""

from collections.abc import Mapping
from dataclasses import replace

from pipeline.checks import check_positive_int
from pipeline.errors import OptionError
from pipeline.logs import logger
from trainer.checkpointing.kept_data import as_begun, as_in_run, keep
from trainer.checkpointing.warm_start import WarmStart
from trainer.inputs import InputFn
from trainer.loop.evaluate import PeriodicEvaluations
from trainer.loop.job import Job, OpenedInput
from trainer.loop.session import begin, open_session
from trainer.loop.train_loop import train_steps
from trainer.results import TrainResult

log = logger("trainer")


def train(
    job: Job,
    input_fn: InputFn,
    warm_start: WarmStart,
    steps: int | None,
    max_steps: int | None,
    max_epochs: int | None,
    eval_inputs: Mapping[str | None, InputFn] | None = None,
    eval_every_steps: int | None = None,
) -> TrainResult:
    """See Trainer.train and Trainer.train_and_evaluate."""
    lengths = {"steps": steps, "max_steps": max_steps, "max_epochs": max_epochs}
    goals = [f"{name}={length}" for name, length in lengths.items() if length is not None]
    if len(goals) > 1:
        raise OptionError(
            f"{' and '.join(goals)} are both given. Give one: steps counts from the newest "
            "checkpoint, the others count from the very first run."
        )
    check_positive_int("steps", steps)
    config = job.config
    if goals:
        config = replace(config, max_steps=max_steps, max_epochs=max_epochs)
    with open_session(job) as session:
        with session.supervisor.leaving():
            session.own()
            start = 0 if config.fast_dev_run else session.checkpoints.resume_step()
            session.activity.saved = start or None
            end = config.fast_dev_run or (
                start + steps if steps else None if config.max_epochs else config.max_steps
            )
            session.describe = (
                as_in_run(config.workdir, start) if start else as_begun(warm_start, job.target)
            )
            opened = session.open("train", input_fn, start) if end is None or start < end else None
            if opened and end is None and config.max_epochs:
                records = opened.source.info.num_records
                end = config.last_step(records)
                log.info(
                    "max_epochs=%d of %s records: training ends at step %d",
                    config.max_epochs,
                    records,
                    end,
                )
                opened = opened if start < (end or 0) else None
            if opened and opened.source.info.endless and end is None:
                raise OptionError(
                    "no end is given, and the input never ends. Give steps, max_steps or "
                    "max_epochs to train, or max_steps or max_epochs in the TrainerConfig."
                )
            inputs = list[OpenedInput]()
            if opened:
                description = opened.description
                session.describe = lambda _: description
                inputs.append(opened)
            evaluations = None
            if eval_inputs:
                evaluations = PeriodicEvaluations(session, eval_inputs, eval_every_steps)
                inputs += evaluations.opened.values()
        session.agree_on(
            inputs, start, end, eval_every_steps=eval_every_steps, warm_start=str(warm_start)
        )
        if opened and not start and job.writes:
            session.ownership.fence()
            keep(config.workdir, opened.description)
        if evaluations and start:
            evaluations.make_up(start, end)
        if opened:
            with session.supervisor.leaving():
                begun = begin(session, opened, start, warm_start)
            result = train_steps(session, opened, begun, end, evaluations)
            if result.speed and job.writes:
                session.ownership.fence()
                result.write(config.workdir)
        else:
            log.warning(
                "nothing to train: the checkpoint of step %d has reached the last step, %d. Give "
                "more steps to continue; to train with other settings or another model, give "
                "another workdir",
                start,
                end,
            )
            result = TrainResult(start, start, state=None, metrics={}, speed=None, executables=0)
        return replace(result, evaluations=tuple(evaluations.results)) if evaluations else result
