"""Whether tests take all of their cases, as .ci/sweep has them do, or the few that every push can wait for."""

import os

SWEEP = os.environ.get("SWEEP") == "1"
