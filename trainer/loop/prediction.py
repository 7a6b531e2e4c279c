"""Predictions, record by record, in the order of the dataset, while the device computes the next
ones.

All hosts make the same number of dispatches: the sums that prove the epoch are over all hosts."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from pipeline.errors import HostError, OptionError
from pipeline.spec import MASK, with_offsets
from pipeline.user_code import ShortErrors
from trainer.checkpointing.listing import WhichStep
from trainer.inputs import InputFn
from trainer.loop.dispatching import Dispatches, DispatchResult
from trainer.loop.exact_epoch import ExactEpoch, Proof
from trainer.loop.job import Job, OpenedInput
from trainer.loop.session import Session, open_session, restore
from trainer.step.state import model_of
from trainer.step.steps import predict_step
from trainer.task import Task, Variables


def check_predict(task: Task, keys: Sequence[str] | None) -> None:
    """OptionError if the task cannot predict or keys is not a list of names. Unknown names are
    found later."""
    if task.predict_fn is None:
        raise OptionError(
            "the task has no predict_fn, so it cannot predict. Give Task(predict_fn=...) a "
            "function of (variables, batch), or nnx_task(predict=...) one of (model, batch)."
        )
    if isinstance(keys, str):
        raise OptionError(f"keys={keys!r} is one str. Give a list of names: keys=[{keys!r}].")


def check_export(job: Job, keys: Sequence[str] | None) -> None:
    """OptionError if the task cannot be exported: it must predict, from arrays with rows first."""
    check_predict(job.task, keys)
    job.check_rows_first(
        "an export", "Export with a Trainer without batch_axis, whose predict_fn takes them."
    )


def predict(
    job: Job,
    input_fn: InputFn,
    keys: Sequence[str] | None,
    step: WhichStep | None,
    checkpoint_path: str | None,
    gather: bool,
) -> Iterator[dict[str, Any]]:
    """See Trainer.predict."""
    with ShortErrors(), open_session(job) as session:
        # Closed before the records: a host that stops early must not wait here for others.
        with session.checkpoints:
            start = restore(
                session, "predict", input_fn, step, checkpoint_path, keys=keys, gather=gather
            )
            with session.supervisor.leaving():
                variables = model_of(start.state, job.config.evaluated_model)
                prediction = Prediction(session, start.opened, variables, keys, gather)
            del start  # with the optimizer's arrays
        yield from prediction.records()


@dataclass
class Prediction:
    """One exact epoch of predictions by one model.

    keys: which predictions; None: all. gather: every host gets the rows of all hosts, not only its
    own."""

    session: Session
    opened: OpenedInput
    variables: Variables
    keys: Sequence[str] | None = None
    gather: bool = True

    def __post_init__(self) -> None:
        self._returned = 0
        job = self.session.job
        predictions = predict_step(job.traced_task, self.keys, job.placement.axes)
        self._epoch = ExactEpoch(
            self.session,
            self.opened,
            lambda variables, carry, batch: (carry, predictions(variables, batch)),
            (self.variables,),
            tuple,
            self.gather,
        )

    def records(self) -> Iterator[dict[str, Any]]:
        """The predictions of every record that counts, with its `_index` if the input has one.

        EvaluationError, before the last dispatch's predictions, unless the epoch was exact.
        HostError if this host stops before the end and another one does not."""
        session = self.session
        proof = Proof(self.opened.source)
        results = list[DispatchResult]()

        def record(result: DispatchResult) -> None:
            proof.add(result.scalars)
            results.append(result)

        constants = (self.variables,)
        with self._epoch.dispatching(session, self.opened, constants, record) as dispatches:
            try:
                for _ in dispatches:
                    if dispatches.ended:
                        break
                    session.end_if_preempted()
                    with session.activity.doing(
                        "with the consumer of its predictions", math.inf, grace=math.inf
                    ):
                        yield from self._records(results)
            except GeneratorExit:
                self._stop_together(dispatches)
                raise
            session.exchange.tell("dispatches", dispatches.launched)  # for hosts that stop early
            returned = f"{self._returned} predictions were returned"
            proof.check(
                "prediction", f"{returned} before this was known: do not use them", ", predicted"
            )
        yield from self._records(results)

    def _records(self, results: list[DispatchResult]) -> Iterator[dict[str, Any]]:
        """Those of the results, which it takes out."""
        added = self.session.job.task.added
        while results:
            rows = with_offsets(results.pop(0).rows, added)
            counting = np.flatnonzero(rows.pop(MASK) > 0)
            leaves, tree = jax.tree.flatten(rows)
            for row in counting.tolist():
                if self.session.supervisor.alone:  # the consumer may be slow
                    self.session.supervisor.check_asked()
                self._returned += 1
                yield tree.unflatten([leaf[row] for leaf in leaves])

    def _stop_together(self, dispatches: Dispatches) -> None:
        """Makes the dispatches that other hosts have already made: they would wait for them
        forever."""
        exchange = self.session.exchange
        seconds = self.session.supervisor.host_seconds / 2
        launched_by_host = exchange.gather("dispatches", dispatches.launched, seconds)
        if len(launched_by_host) < exchange.count:
            raise HostError(
                f"it stopped iterating over its predictions after {dispatches.launched} "
                f"dispatches, but other hosts continued for {seconds:g} s (half of "
                "host_timeout_seconds). Iterate in the same way on every host; if an error stopped "
                "this one, see its log."
            )
        for _ in range(max(launched_by_host.values()) - dispatches.launched):
            dispatches.launch_next()
        dispatches.settle()
