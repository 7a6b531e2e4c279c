"""The console of all commands: when it may redraw lines."""

import io
import os
import pty

import pytest

from pipeline.tools.command import Console, Parser, say


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


def test_lines_are_redrawn_on_a_terminal_only(streams):
    assert [Console(file=stream).is_terminal for stream in streams] == [True, False]


def test_force_color_does_not_make_a_terminal_of_a_file(streams, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert [Console(file=stream).is_terminal for stream in streams] == [True, False]


def test_the_pseudo_terminal_of_a_notebook_is_not_treated_as_a_terminal(streams, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    assert not any(Console(file=stream).is_terminal for stream in streams)


def test_a_line_is_printed_as_it_is():
    console = Console(file=io.StringIO(), width=9)
    say(console, "a[red]x :smile: and more than nine")
    assert console.file.getvalue() == "a[red]x :smile: and more than nine\n"


def test_names_of_options_may_have_underscores_and_what_is_no_option_keeps_them():
    parser = Parser("pipeline.verify", __doc__, ())
    parser.add_argument("--dali-index", nargs="?")
    parser.add_argument("files", nargs="*")
    given = parser.parse_args(["--dali_index=my_index", "a_b", "--", "--c_d", "e_f"])
    assert (given.dali_index, given.files) == ("my_index", ["a_b", "--c_d", "e_f"])
