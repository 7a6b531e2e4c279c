"""The old name of trainer.device_speed, for one version."""

if __name__ == "__main__":
    from pipeline.ctrl_c import leave_at_once

    leave_at_once()  # before the imports: they take seconds

import warnings

from pipeline.tools.command import exit_with
from trainer.device_speed import main

if __name__ == "__main__":
    warnings.warn("python -m trainer.flops is python -m trainer.device_speed now", DeprecationWarning, stacklevel=1)
    exit_with(main)
