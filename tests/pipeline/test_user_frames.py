"""Errors in a notebook. .ci/notebook.py sees them in a real one."""

import sys
import traceback
import types

import pytest

from pipeline.errors import ManifestError
from pipeline.sources.open_dataset import open_dataset
from trainer.hosts.exits import Interrupted


@pytest.fixture
def shown(monkeypatch):
    """shown(error): the names of the functions in the traceback that IPython would format, and its cause."""
    calls = []

    def structured_traceback(kind, error, trace, tb_offset):
        assert (kind, tb_offset) == (type(error), 0)
        cause = error.__cause__ if error.__suppress_context__ else error.__context__
        calls.append(([frame.name for frame in traceback.extract_tb(trace)], cause))
        return ["formatted"]

    shell = types.SimpleNamespace(
        InteractiveTB=types.SimpleNamespace(structured_traceback=structured_traceback)
    )
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))

    def show(error):
        before = error.__cause__, error.__context__, error.__suppress_context__, error.__traceback__
        assert error._render_traceback_() == ["formatted"]
        assert (
            error.__cause__,
            error.__context__,
            error.__suppress_context__,
            error.__traceback__,
        ) == before
        return calls.pop()

    return show


def a_mistake(path):
    return open_dataset(path, "train")


@pytest.fixture
def error(tmp_path):
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ManifestError) as caught:
        a_mistake(tmp_path)
    assert caught.value.__cause__ is not None
    return caught.value


def test_only_the_users_frames_are_shown_and_no_cause(error, shown):
    names, cause = shown(error)
    assert names == ["error", "a_mistake"]
    assert cause is None


def test_all_frames_and_the_cause_are_shown_to_those_who_ask(error, shown, monkeypatch):
    monkeypatch.setenv("JAX_TRACEBACK_FILTERING", "off")
    names, cause = shown(error)
    assert len(names) > 4
    assert cause is error.__cause__


def test_the_traceback_of_an_interrupt_shows_only_user_frames(shown):
    with pytest.raises(KeyboardInterrupt) as caught:
        raise Interrupted("all progress is saved")
    assert shown(caught.value) == (
        ["test_the_traceback_of_an_interrupt_shows_only_user_frames"],
        None,
    )


def test_an_error_without_user_frames_keeps_all_frames(shown, tmp_path):
    code = compile(
        "from infeed import open_dataset\nopen_dataset(path, 'train')", "<unknown>", "exec"
    )
    with pytest.raises(Exception, match=r"manifest\.json does not exist") as caught:
        exec(code, {"path": tmp_path})
    caught.value.__traceback__ = caught.tb.tb_next
    names, _ = shown(caught.value)
    assert names[:2] == ["<module>", "open_dataset"]
