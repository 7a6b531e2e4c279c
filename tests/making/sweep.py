"""Whether tests take all of their cases, as .ci/sweep has them do, or the few that every push can wait for."""

import os

SWEEP = os.environ.get("SWEEP") == "1"


def examples(full: int) -> int:
    """hypothesis's max_examples: `full` in a sweep, else a third of it, but at least fifteen.

    For tests that trace a graph or read a data set in each example. A test whose mutants a third of the examples
    misses, or whose examples cost next to nothing, keeps them all."""
    return full if SWEEP else min(full, max(15, full // 3))
