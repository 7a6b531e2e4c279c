"""The rows over which batch norms take their statistics, as a flag of recipes."""

import math

from pipeline.errors import OptionError
from trainer.config import TrainerConfig, check_positive_int

__all__ = ["fitting_span"]


def fitting_span(bn_span: int, trainer: TrainerConfig, tiny: bool) -> int:
    """bn_span; with --tiny, whose batches are small, what divides them. OptionError unless it divides a batch."""
    check_positive_int("bn_span", bn_span)
    rows = trainer.global_batch_size // trainer.accumulate
    divisor = math.gcd(rows, bn_span)
    if divisor != bn_span and not tiny:
        raise OptionError(
            f"bn_span={bn_span} does not divide the {rows} rows of a batch (global_batch_size / accumulate). Give "
            f"--bn-span a divisor, such as {divisor}."
        )
    return divisor
