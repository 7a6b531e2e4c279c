"""A callback that exports models as they are evaluated: Trainer(callbacks=[Exporter(...)])."""

from typing import Any, Literal, get_args

from pipeline.checks import check_choice
from trainer.callbacks import Callback, EvaluationEnd
from trainer.inputs import InputFn
from trainer.serving.publishing import ExportOptions

__all__ = ["Exporter", "When"]

When = Literal["best", "latest", "final"]
"""best: after an evaluation that is better than that of the newest export. latest: after every one.
final: after the last one of a run."""


class Exporter(Callback):
    """Exports what was evaluated to `path`, as Trainer.export does.

    input_fn: see Trainer.export. metric, better: what best means: the largest ("max") or smallest
    ("min") value. A restarted run compares with the newest export, which knows its own. keep: how
    many exports to keep; None: all. name: of the evaluations; default: those without a name.
    options: model, keys, labels, tolerance, platforms and assets_extra of Trainer.export. An export
    that fails ends the training, whose checkpoint was saved before."""

    def __init__(
        self,
        path: str,
        input_fn: InputFn,
        *,
        when: When = "latest",
        metric: str = "loss",
        better: Literal["min", "max"] = "min",
        keep: int | None = 5,
        name: str | None = None,
        **options: Any,
    ) -> None:
        check_choice("when", when, get_args(When))
        check_choice("better", better, ("min", "max"))
        # a mistake should not wait for the first evaluation
        ExportOptions(path, keep=keep, **options)
        self._path = path
        self._input_fn = input_fn
        self._when = when
        self._name = name
        self._options: dict[str, Any] = options | {"keep": keep}
        if when == "best":
            self._options |= {"better": better, "metric": metric}

    def on_evaluation_end(self, end: EvaluationEnd) -> None:
        """Exports, if it is due."""
        if end.name == self._name and (end.final or self._when != "final"):
            end.export(self._path, self._input_fn, **self._options)
