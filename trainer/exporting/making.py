"""Makes an export on one host: writes the SavedModel, has it verified, describes it, publishes it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import ExportError, StorageError
from pipeline.logs import logger
from pipeline.shards.schema import Labels
from trainer.checkpointing.contents import versions
from trainer.exporting.description import Description, Origin, signature_facts, write_description
from trainer.exporting.examples import Examples
from trainer.exporting.options import ExportOptions
from trainer.exporting.publishing import EXTRA, Exports, copy_file
from trainer.exporting.saved_model import CLASS_NAME, Signature, write_saved_model
from trainer.exporting.served_model import ServedModel
from trainer.exporting.verification import BATCH_SIZES, verify
from trainer.results import ExportResult

__all__ = ["Making"]

log = logger("trainer")

Predicted = Sequence[Mapping[str, Any]]
"""name -> value, of each record."""


@dataclass(frozen=True)
class Making:
    """labels: those of the options that have names."""

    options: ExportOptions
    served: ServedModel
    labels: Mapping[str, Labels]
    origin: Origin

    def __call__(
        self,
        arrays: Iterable[tuple[str, np.ndarray]],
        predicted: Predicted,
        examples: Examples,
        check: Callable[[], None],
    ) -> ExportResult:
        """arrays: of the model, by name. predicted: of these examples. check: called now and then; may raise."""
        options, exports = self.options, Exports(self.options.path)
        count = min(len(predicted), examples.count)
        if not count:
            raise ExportError(
                "the evaluation split begins without a good record to verify the export with. Give another split."
            )
        if examples.serving is None:
            log.info("export: the input does not know how its records are stored, so it takes only arrays")
        with exports.unpublished() as scratch:
            directory = scratch / "model"
            given = (self.served, arrays, examples.serving, self.labels, options.platforms)
            signatures = write_saved_model(str(directory), *given)
            expected = self._expected(predicted[:count])
            inputs = _inputs(signatures, examples, count)
            apart = verify(str(directory), str(scratch), inputs, expected, options.tolerance, check)
            log.info(
                "export: a process without JAX predicts %d records as predict does, through %s, in batches of %s; "
                "largest difference: %.2g (tolerance %g)",
                *(count, ", ".join(signatures), ", ".join(map(str, BATCH_SIZES)), apart, options.tolerance),
            )
            verified = {
                "records": count,
                "batch_sizes": BATCH_SIZES,
                "tolerance": options.tolerance,
                "difference": apart,
            }
            facts = signature_facts(signatures, expected)
            extra = options.assets_extra or {}
            write_description(directory, Description(self.origin, facts, self.labels, versions(), verified, [*extra]))
            for name, path in extra.items():
                copy_file(str(path), str(directory / EXTRA / name))
            check()
            path = exports.publish(directory)
        log.info("export: published the model of step %d in %s", self.origin.step, path)
        if options.keep is not None:
            try:
                exports.keep(options.keep)
            except StorageError as e:
                log.warning("export: cannot remove older exports: %s", e)
        return ExportResult(path, self.origin.step, apart)

    def _expected(self, predicted: Predicted) -> dict[str, np.ndarray]:
        """What the export has to answer: predictions, and names of classes."""
        expected = {name: np.stack([record[name] for record in predicted]) for name in self.served.predictions}
        for key, labels in self.labels.items():
            names = dict(enumerate(labels.names, labels.base))
            given = [names.get(number, "").encode() for number in expected[key].tolist()]
            expected[CLASS_NAME.format(key)] = np.array(given, object)
        return expected


def _inputs(signatures: Mapping[str, Signature], examples: Examples, count: int) -> dict[str, dict[str, Any]]:
    """signature -> argument -> the values of the first `count` records."""
    values = examples.inputs()
    return {
        name: {argument: values[name][key][:count] for argument, key in signature.inputs.items()}
        for name, signature in signatures.items()
    }
