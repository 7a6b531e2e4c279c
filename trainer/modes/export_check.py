"""What a training that will export its model says at its start, hours before the export."""

import importlib.util
from collections.abc import Collection, Sequence
from typing import Protocol, runtime_checkable

import jax

from pipeline.errors import OptionError, how_to_install
from pipeline.logs import logger
from trainer.batch_spec import named_leaves
from trainer.exporting.served_model import serve
from trainer.inputs import InputFn
from trainer.job import Job, OpenedInput
from trainer.modes.predict import check_export
from trainer.modes.session import Session

log = logger("trainer")


@runtime_checkable
class Exports(Protocol):
    """A callback that exports models, or announces an export. Its attributes: input_fn and keys of Trainer.export."""

    export_input: InputFn
    export_keys: Sequence[str] | None


def check_tensorflow() -> None:
    """Raises OptionError if it is not installed."""
    if importlib.util.find_spec("tensorflow") is None:
        raise OptionError(f"exports need TensorFlow, which is not installed. Install it: {how_to_install('tf')}.")


def check_exports(session: Session, opened: Collection[OpenedInput]) -> None:
    """Logs, on host 0, which ops leave the exports of callbacks with the signature `arrays` alone.

    opened: inputs of evaluations; another input of an export is opened. Raises OptionError if TensorFlow is not
    installed; where there are such ops, also for a task that predicts nothing."""
    exporting = [callback for callback in session.job.callbacks if isinstance(callback, Exports)]
    if not exporting or jax.process_index() > 0 or session.job.config.fast_dev_run:
        return
    check_tensorflow()
    for callback in exporting:
        known = [each for each in opened if each.input_fn == callback.export_input]
        one = known[0] if known else session.open("predict", callback.export_input)
        _warn_of_ops(session.job, one, callback.export_keys)


def _warn_of_ops(job: Job, opened: OpenedInput, keys: Sequence[str] | None) -> None:
    serving = getattr(opened.source, "serving", None)
    if serving is None:
        return
    from trainer.exporting.exportable import arrays_only, ops_without_graph  # loads the ops, as this input has done

    if ops_without_graph(serving([name for name in named_leaves(opened.struct) if not name.startswith("_")])):
        # Some may make only what the model does not need, such as the label. Tracing the predictions tells.
        check_export(job, keys)
        with job.naming_batch(opened):
            model = serve(job.task, job.abstract_state(opened).variables, job.spec(opened), keys)
        if ops := ops_without_graph(serving(list(model.arrays))):
            log.warning("%s", arrays_only(ops))
