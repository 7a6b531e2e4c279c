"""How a process ends: each test has a ProcessEnd of its own, and ends nothing."""

import pytest

from trainer import exits


class LeftError(Exception):
    pass


@pytest.fixture
def process(monkeypatch):
    """A ProcessEnd, and what it did: it leaves by an exception and registers no exit handler."""
    done = []

    def leave(code):
        done.append(code)
        raise LeftError

    monkeypatch.setattr(exits, "leave", leave)
    monkeypatch.setattr(exits.atexit, "register", lambda function, *arguments: done.append(("at exit", *arguments)))
    return exits.ProcessEnd(), done


def test_a_process_of_a_broken_cluster_prints_its_first_message_and_exits_without_waiting(process):
    end, done = process
    end.break_apart(lambda: done.append("gone"), 3)
    end.break_apart(lambda: done.append("never said"))
    assert end.is_apart()
    with pytest.raises(LeftError):
        end.end(1)
    assert done == [("at exit", 3), "gone", 1]


def test_a_process_with_abandoned_threads_exits_immediately(process):
    end, done = process
    end.abandon_threads()
    with pytest.raises(LeftError):
        end.end(2)
    assert (done, end.is_apart()) == ([2], False)
    assert not exits.is_apart()
