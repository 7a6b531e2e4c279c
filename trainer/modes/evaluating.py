"""One evaluation of a checkpoint."""

import jax

from trainer.checkpointing.manager import WhichStep
from trainer.events.progress import RecordsLine
from trainer.inputs import InputFn
from trainer.modes.epoch_totals import OnRecords
from trainer.modes.evaluated import Evaluated
from trainer.modes.evaluation import Evaluation, compare_paddings
from trainer.modes.preflight import agree_on
from trainer.modes.session import open_session
from trainer.results import EvalResult
from trainer.setup import Setup

__all__ = ["evaluate"]


def evaluate(
    setup: Setup,
    input_fn: InputFn,
    name: str | None,
    step: WhichStep | None,
    checkpoint_path: str | None,
    *,
    check_padding: bool,
    on_records: OnRecords | None,
) -> EvalResult:
    """See Trainer.evaluate."""
    with open_session(setup.config) as session:
        with session.preemption.leavable():
            reading, step = session.reading(setup.config, step, checkpoint_path)
            opened = setup.open("eval", input_fn)
        facts = {"check_padding": check_padding, "checkpoint_path": checkpoint_path}
        facts["on_records"] = "given" if on_records else "not given"
        agree_on(session.watchdog, setup, [opened], step, step, **facts)
        with session.preemption.leavable():
            state = reading.state(setup, opened, step)
            evaluation = Evaluation(session, setup, opened, state, step, input_fn, on_records)
        due = opened.source.num_records
        due = due and due * len(setup.config.evaluated_models)
        with RecordsLine("evaluated", due, shown=jax.process_index() == 0) as line:
            result = evaluation.epoch(on_counted=line.add)
        if check_padding:
            compare_paddings(evaluation, result)
        evaluated = Evaluated(session, setup, evaluation.state, result, final=True)
        evaluated.tell(name)
        if name is None and checkpoint_path is None:  # what keep_best uses
            evaluated.record()
    return result
