"""The command `infeed`: runs the other commands by their names. Imports none of them.

The current directory is not on the path, so that nothing in it is imported. `infeed train` adds it,
last, for a recipe of the user's own."""

import os
import runpy
import sys
from collections.abc import Sequence

from pipeline.checks import did_you_mean
from pipeline.console.commands import ALL_COMMANDS, COMMANDS, Command, started_by_infeed
from pipeline.console.interrupts import Exit, ctrl_c_exits, ends_when_not_read
from pipeline.errors import OptionError
from pipeline.packages import version_of

_CONVERT = "convert"
_END = """examples:
  infeed digits raw
  infeed convert imagenet --raw-data-dir=raw --label-file=raw/synsets.txt --output=shards

see also: infeed convert --help, infeed COMMAND --help"""
_END_OF_CONVERT = """examples:
  infeed convert images --raw-data-dir=photos --output=shards --validation-fraction=0.2
  infeed convert tfrecord --help

see also: infeed index --help, infeed describe --help"""


def main() -> int:
    """Runs the command that sys.argv names; for one of our modules, ends as that does. Returns the
    exit code."""
    ctrl_c_exits()
    with ends_when_not_read():
        try:
            return _run(sys.argv[1:])
        except OptionError as error:
            print(f"error: {error}", file=sys.stderr)
            return Exit.ERROR


def _run(arguments: Sequence[str]) -> int:
    if arguments == ["--version"]:
        print(f"infeed {version_of('infeed') or 'of a checkout that is not installed'}")
        return 0
    converting = arguments[:1] == [_CONVERT]
    rest = arguments[1 + converting :]
    words = arguments[: 1 + converting]
    if words in ([], ["-h"], ["--help"]):
        print(_help())
    elif words in ([_CONVERT], [_CONVERT, "-h"], [_CONVERT, "--help"]):
        print(_help_of_convert())
    else:
        module = _find(" ".join(words)).module
        started_by_infeed()
        if module.startswith("converters."):
            # Beam starts workers by `python -m`, which would put the current directory first.
            os.environ["PYTHONSAFEPATH"] = "1"
        sys.argv[1:] = rest
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def _find(words: str) -> Command:
    """Raises OptionError for words that are no command; names the nearest."""
    known = {command.words: command for command in ALL_COMMANDS}
    if words not in known:
        kind = words.removeprefix(f"{_CONVERT} ")
        kinds = [name.removeprefix(f"{_CONVERT} ") for name in known if name.startswith(_CONVERT)]
        hint = (
            did_you_mean(words, [*known, _CONVERT]) if kind == words else did_you_mean(kind, kinds)
        )
        if words in ("evaluate", "export", "sample"):
            hint = f" It is a mode of training: infeed train RECIPE --mode {words}."
        raise OptionError(f"there is no command 'infeed {words}'.{hint}")
    return known[words]


def _help() -> str:
    lines = [
        "usage: infeed COMMAND [options]",
        "",
        "Raw data to TFRecord shards to an exactly evaluated JAX model.",
    ]
    for title, commands in COMMANDS.items():
        lines += ["", f"{title}:", *map(_line, commands)]
    return "\n".join(
        [*lines, "", "`infeed COMMAND --help` lists the options of a command.", "", _END]
    )


def _help_of_convert() -> str:
    lines = [_line(command) for command in ALL_COMMANDS if command.words.startswith(_CONVERT)]
    head = [
        "usage: infeed convert KIND [options]",
        "",
        "Converts raw data to TFRecord shards of about 100 MB.",
        "",
    ]
    return "\n".join([*head, *lines, "", _END_OF_CONVERT])


def _line(command: Command) -> str:
    return f"  {command.words:18}{command.purpose}"
