"""The command `infeed` in this process, as tests run it."""

import signal
import sys

from pipeline.commands import infeed
from pipeline.console import commands

__all__ = ["SCRIPT", "run_infeed"]

SCRIPT = (
    "import sys\nfrom pipeline.commands.infeed import main\nsys.exit(main())\n"  # what pip writes
)


def run_infeed(monkeypatch, capsys, *arguments):
    """(exit code, stdout, stderr) of `infeed *arguments`, which does not stay started."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["infeed", *arguments])
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(commands, "_by_infeed", False)
        patch.setenv("PYTHONSAFEPATH", "1")
        patch.setenv("COLUMNS", "80")
        before = signal.getsignal(signal.SIGINT)
        try:
            status = infeed.main()
        except SystemExit as left:
            status = left.code or 0
        finally:
            # the command exits at Ctrl-C; later tests interrupt themselves
            signal.signal(signal.SIGINT, before)
    return status, *capsys.readouterr()
