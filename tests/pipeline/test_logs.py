"""Log lines: one call shows them, each once, also in a program that has handlers of its own."""

import io
import logging
import os
import pty
import subprocess
import sys

import pytest

from pipeline import logs
from pipeline.console.console import Console, say
from pipeline.console.parser import Parser
from pipeline.quiet import quiet_libraries


@pytest.fixture
def root_with(monkeypatch):
    """root_with(handlers): the root logger of a program that has set up these alone."""

    def make(*handlers):
        root = logging.getLogger()
        # not in the set-up: pytest then adds its own
        monkeypatch.setattr(root, "handlers", list(handlers))
        return root

    return make


def test_showing_logs_twice_prints_lines_once_and_no_other_loggers(root_with, capsys):
    root_with()
    logs.show()
    logs.show()
    logging.getLogger("trainer").info("step 1")
    logging.getLogger("elsewhere").info("noise")
    assert capsys.readouterr().err == "step 1\n"


def test_a_programs_own_handler_gets_the_lines_and_stays_the_only_one(root_with, caplog, capsys):
    root = root_with(caplog.handler)
    logs.show()
    logging.getLogger("pipeline").info("a file")
    assert caplog.messages == ["a file"]
    assert root.handlers == [caplog.handler]
    assert capsys.readouterr().err == ""


def test_the_handler_that_absl_sets_when_orbax_is_imported_shows_plain_lines(root_with, capsys):
    root_with()
    logging.basicConfig()
    logs.show()
    logging.getLogger("trainer").info("step 1")
    assert capsys.readouterr().err == "step 1\n"


def test_quiet_libraries_silences_libraries_and_child_processes_but_not_python(capfd):
    with quiet_libraries():
        os.write(2, b"a library\n")
        subprocess.run(
            [sys.executable, "-c", "import sys; print('a child', file=sys.stderr)"], check=True
        )
        print("why the process ends", file=sys.stderr)
    print("behind", file=sys.stderr)
    assert capfd.readouterr().err == "why the process ends\nbehind\n"


def test_a_log_handler_created_while_libraries_are_silenced_works_afterwards(capfd):
    with quiet_libraries():
        handler = logging.StreamHandler()  # takes sys.stderr as it is now
    handler.handle(logging.makeLogRecord({"msg": "a warning"}))
    assert capfd.readouterr().err == "a warning\n"


@pytest.fixture
def streams(monkeypatch):
    """A terminal and a file, and an environment that says nothing about them."""
    for name in ("JPY_PARENT_PID", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        yield terminal, io.StringIO()
    os.close(ours)


@pytest.mark.parametrize(
    ("environment", "terminal"),
    [
        ({}, True),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "JPY_PARENT_PID": "1"}, False),
    ],
    ids=["shell", "forced colors", "notebook"],
)
def test_lines_are_redrawn_only_on_a_terminal_that_is_not_that_of_a_notebook(
    streams, monkeypatch, environment, terminal
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert [Console(file=stream).is_terminal for stream in streams] == [terminal, False]


def test_a_line_is_printed_as_it_is():
    console = Console(file=io.StringIO(), width=9)
    say(console, "a[red]x :smile: and more than nine")
    assert console.file.getvalue() == "a[red]x :smile: and more than nine\n"


def test_names_of_options_may_have_underscores_and_what_is_no_option_keeps_them():
    parser = Parser("pipeline.commands.verify", __doc__, ())
    parser.add_argument("--dali-index", nargs="?")
    parser.add_argument("files", nargs="*")
    given = parser.parse_args(["--dali_index=my_index", "a_b", "--", "--c_d", "e_f"])
    assert (given.dali_index, given.files) == ("my_index", ["a_b", "--c_d", "e_f"])
