"""Whether tests take all of their cases, as .ci/sweep has them do, or the few that every push can wait for."""

import os

SWEEP = os.environ.get("SWEEP") == "1"


def examples(full: int) -> int:
    """hypothesis's max_examples: `full` in a sweep, else a third of it, but at least fifteen.

    Each example traces a graph of TensorFlow, or reads a data set. hypothesis tries the smallest and the largest values
    first, so most mutants of our code fall within the first dozen; the rest is for what nobody has thought of."""
    return full if SWEEP else min(full, max(15, full // 3))
