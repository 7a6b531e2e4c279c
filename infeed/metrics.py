"""The metrics of a Task: metrics={"accuracy": Accuracy("label")}. See trainer.task.Metric for one
of your own."""

from trainer.metrics.binary import AUC, PrecisionRecall
from trainer.metrics.classes import Accuracy, ConfusionMatrix, PerClass, TopK
from trainer.metrics.means import Mean, Perplexity, Regression
from trainer.metrics.tokens import BitsPerByte, TokenAccuracy
from trainer.task import Metric

__all__ = [
    "AUC",
    "Accuracy",
    "BitsPerByte",
    "ConfusionMatrix",
    "Mean",
    "Metric",
    "PerClass",
    "Perplexity",
    "PrecisionRecall",
    "Regression",
    "TokenAccuracy",
    "TopK",
]
