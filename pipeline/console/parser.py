"""The options of a command, and its end: an InfeedError becomes one line on stderr and exit code 2,
never a traceback; with --json, all that a program needs to know becomes one line on stdout."""

import argparse
import contextlib
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from pipeline.console.commands import as_started, command_of, help_end, program
from pipeline.console.interrupts import (
    Exit,
    ctrl_c_exits,
    ctrl_c_raises,
    ends_when_not_read,
)
from pipeline.errors import InfeedError, OptionError

FACTS: dict[str, Any] = {}
"""What the command of this process has to say with --json, besides how it ended."""


def spelled(argument: str, old: str, new: str) -> str:
    """An argument of a command line with other characters in the name of its option, if it is
    one."""
    name, equals, value = argument.partition("=")
    return f"--{name[2:].replace(old, new)}{equals}{value}" if name.startswith("--") else argument


class Parser(argparse.ArgumentParser):
    """argparse's for the options of a module. Its help starts with the purpose of the command and
    ends with examples.

    doc: the module's docstring, of which the help leaves out the first paragraph.
    examples: the options of two commands that work.
    see_also: modules of related commands.

    Escapes control characters in its messages: a shell's `*` may pass file names that have some."""

    def __init__(
        self,
        module: str,
        doc: str | None,
        examples: Sequence[str],
        see_also: Sequence[str] = ("pipeline.commands.describe", "pipeline.commands.verify"),
        usage: str | None = None,
    ) -> None:
        width = shutil.get_terminal_size().columns - 2
        details = (doc or "").split("\n\n")[1:]
        paragraphs = (textwrap.fill(text, width) for text in (command_of(module).purpose, *details))
        super().__init__(
            prog=program(module),
            usage=usage,
            description="\n\n".join(paragraphs),
            epilog=help_end(program(module), examples, see_also),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Like argparse's, but underscores in the names of options are as good as hyphens. After
        "--" are no options."""
        arguments = list(sys.argv[1:] if args is None else args)
        end = [*arguments, "--"].index("--")
        arguments[:end] = [spelled(each, "_", "-") for each in arguments[:end]]
        return super().parse_known_args(arguments, namespace)

    def error(self, message: str) -> NoReturn:
        """Raises OptionError. argparse would print the usage first, which may be longer than a
        screen."""
        raise OptionError(f"{message}. See {self.prog} --help.")

    def add_json(self) -> None:
        """Adds --json, which `exit_with` obeys."""
        self.add_argument(
            "--json",
            action="store_true",
            help="print one JSON object, also for an error; all else goes to stderr",
        )


def exit_with(
    main: Callable[[], int | None], interrupted: str = "interrupted.", *, facts: bool = False
) -> None:
    """Runs a command line's main. Exits with what it returns, or with another Exit.

    facts: whether --json prints how it ended, and FACTS."""
    status: int | None = None
    command, as_json = False, facts and "--json" in sys.argv
    try:
        command = ctrl_c_raises()
        with (
            ends_when_not_read(),
            contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout),
        ):
            status = main()
    except InfeedError as e:
        FACTS["error"] = as_started(str(e))
        print(f"error: {FACTS['error']}", file=sys.stderr)
        status = Exit.ERROR
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        status = Exit.INTERRUPTED
    except Exception as e:
        FACTS["error"] = f"{type(e).__name__}: {e}"
        sys.excepthook(type(e), e, e.__traceback__)
        status = Exit.BUG
    finally:
        if command:  # no traceback for another Ctrl-C while the interpreter waits for threads
            ctrl_c_exits()
    end = Exit(status or 0)
    if as_json:
        with ends_when_not_read():
            print(json.dumps({"status": end.name.lower(), "exit_code": end} | FACTS))
    if end:
        sys.exit(end)
