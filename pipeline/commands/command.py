"""Shared by all command lines: an InfeedError becomes one line on stderr and exit code 2, never a
traceback.

They print only through this Console, so that control characters in raw data never reach a terminal.
Also the options about the schema of TFRecord files."""

import argparse
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from pipeline.commands.program import (
    EXIT_INTERRUPTED,
    as_started,
    command_of,
    ctrl_c_exits,
    ctrl_c_raises,
    ends_when_not_read,
    help_end,
    program,
)
from pipeline.errors import InfeedError, OptionError, printable


class Console(rich.console.Console):
    """rich's, but escapes all control characters except its own codes and newlines."""

    @property
    def is_terminal(self) -> bool:
        """Whether lines can be redrawn. A notebook's ! and %% repeat them, although they set
        FORCE_COLOR, and ! has a pseudo-terminal. Its kernel, and what the kernel starts, have
        JPY_PARENT_PID."""
        return super().is_terminal and self.file.isatty() and "JPY_PARENT_PID" not in os.environ

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Like rich's."""
        for segment in super().render(renderable, options):
            lines = map(printable, segment.text.split("\n"))
            yield segment if segment.control else segment._replace(text="\n".join(lines))

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError, for `ends_when_not_read`. rich exits with 1, which has other
        meanings here."""
        raise BrokenPipeError


def spelled(argument: str, old: str, new: str) -> str:
    """An argument of a command line with other characters in the name of its option, if it is
    one."""
    name, equals, value = argument.partition("=")
    return f"--{name[2:].replace(old, new)}{equals}{value}" if name.startswith("--") else argument


class Parser(argparse.ArgumentParser):
    """argparse's for the options of a module. Its help starts with the purpose of the command and
    ends with examples.

    doc: the module's docstring, of which the help leaves out the first paragraph. examples: the
    options of two commands that work. see_also: modules of related commands. Escapes control
    characters in its messages: a shell's `*` may pass file names that have some."""

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
        """Exits with 2 and one line. argparse would print the usage first, which may be longer than
        a screen."""
        self.exit(2, f"error: {printable(message)}. See {self.prog} --help.\n")


def exit_with(main: Callable[[], int | None], interrupted: str = "interrupted.") -> None:
    """Runs a command line's main. Exits with what it returns, 2 on an InfeedError, 130 on Ctrl-C,
    141 if nobody reads what it prints, as after `| head`."""
    status = None
    command = False
    try:
        command = ctrl_c_raises()
        with ends_when_not_read():
            status = main()
    except InfeedError as e:
        print(f"error: {as_started(str(e))}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        status = EXIT_INTERRUPTED
    finally:
        if command:  # no traceback for another Ctrl-C while the interpreter waits for threads
            ctrl_c_exits()
    if status:
        sys.exit(status)


def byte_bar(console: rich.console.Console) -> Progress:
    """A progress bar of bytes below the output; only on a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def say(console: rich.console.Console, line: str) -> None:
    """Prints exactly one line, without markup or wrapping, whatever the text contains."""
    console.print(printable(line), markup=False, emoji=False, highlight=False, soft_wrap=True)


def table(
    columns: Iterable[str], rows: Iterable[Iterable[object]], title: str = "", **style: Any
) -> Table:
    """A table of plain text, as data must not act as markup or as terminal control codes. Texts
    that are too long fold.

    style: of rich's Table."""
    headers = (Column(Text(name), overflow="fold") for name in columns)
    grid = Table(*headers, title=Text(title) if title else None, title_justify="left", **style)
    for row in rows:
        grid.add_row(
            *(Text(printable(f"{cell:,}" if type(cell) is int else str(cell))) for cell in row)
        )
    return grid


def add_schema_options(parser: argparse.ArgumentParser) -> None:
    """Adds --schema-file, --labels-file, --label-key and --label-base."""
    options = parser.add_argument_group("records")
    options.add_argument(
        "--schema-file", help="JSON of the schema of all records, or a manifest (default: inferred)"
    )
    options.add_argument("--labels-file", help="names of the labels, one per line")
    options.add_argument("--label-key", help="the feature that holds the labels")
    options.add_argument(
        "--label-base", type=int, default=0, help="the label of the first name (default: 0)"
    )


def check_label_options(args: argparse.Namespace) -> None:
    """Raises OptionError if only one of --labels-file and --label-key is given."""
    if (args.labels_file is None) != (args.label_key is None):
        raise OptionError("--labels-file and --label-key belong together: give both, or neither.")
