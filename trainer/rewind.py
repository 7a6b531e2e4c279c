"""The old name of trainer.seen, for one version."""

if __name__ == "__main__":
    from pipeline.ctrl_c import leave_at_once

    leave_at_once()  # before the imports: they take seconds

import sys

from pipeline.tools.command import exit_with
from pipeline.tools.program import program
from trainer.seen import main

if __name__ == "__main__":
    print(f"warning: this is now {program('trainer.seen')}; its old name, rewind, will be removed.", file=sys.stderr)
    exit_with(main)
