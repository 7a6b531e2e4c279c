"""How far an export is from what the trainer predicts; the process that verifies it ends with its parent."""

import itertools
import os
import time
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ExportError
from trainer.serving import verification
from trainer.serving.verification import difference, served, verify

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("found", "expected", "apart"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0),
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([1.0, -2.0], [1.0, 2.0], 2),
        ([0.0, 0.0], [0.0, 0.0], 0),
        ([0.0, 1e-30], [0.0, 0.0], INFINITY),
        ([NAN, 1.0], [NAN, 1.0], 0),
        ([NAN, 1.0], [1.0, 1.0], INFINITY),
        ([1.0, 1.0], [NAN, 1.0], INFINITY),
        ([INFINITY, 1.0], [INFINITY, 1.0], 0),
        ([-INFINITY, 1.0], [INFINITY, 1.0], INFINITY),
        ([1.0], [1.0, 1.0], INFINITY),
        ([1, 2], [1, 2], 0),
        ([1, 3], [1, 2], INFINITY),
        ([b"cat"], [b"cat"], 0),
        ([b"dog"], [b"cat"], INFINITY),
        ([], [], 0),
    ],
)
def test_differences_are_relative_for_floats_and_all_or_nothing_for_other_types(
    found, expected, apart
):
    kind = object if expected and isinstance(expected[0], bytes) else None
    assert difference(np.array(found, kind), np.array(expected, kind)) == apart


@pytest.mark.parametrize(
    ("found", "expected", "text"),
    [
        (
            {"class": [1, 1], "score": [0.5, 0.2]},
            {"class": [1, 0], "score": [0.5, 0.8]},
            "'score' of record 1, through the signature 'arrays' in batches of 3, is 0.2, and 0.8 in predict",
        ),
        ({"names": [b"x" * 99]}, {"names": [b"y"]}, r"is b'x{55}\.\.\., and b'y' in predict"),
        (
            {"far": [10**9 + 1.0, 10**9 + 2.0]},
            {"far": [10**9 + 1.0, 10**9 + 2.5]},
            r"'far' of record 1, .* is 2\.0, and 2\.5 in predict: they differ by 0\.2",
        ),
        ({"class": [1], "more": [0]}, {"class": [1]}, "the export has the prediction 'more', predict does not"),
        ({"class": [1]}, {"class": [1], "score": [0.5]}, "predict has the prediction 'score', the export does not"),
    ],
)  # fmt: skip
def test_the_error_names_the_prediction_and_the_record_that_differ_most(
    monkeypatch, found, expected, text
):
    def arrays(values):
        kinds = {
            name: object if isinstance(value[0], bytes) else None for name, value in values.items()
        }
        return {name: np.array(value, kinds[name]) for name, value in values.items()}

    monkeypatch.setattr(verification, "served", lambda *given: {("arrays", 3): arrays(found)})
    with pytest.raises(ExportError, match=text):
        verify(
            "there",
            "here",
            {"arrays": {}},
            arrays(expected),
            {"far": 1e9},
            {"arrays": 1e-5},
            lambda: None,
        )


@pytest.mark.slow
def test_a_missing_saved_model_is_a_one_line_error_and_local_modules_are_not_imported(
    tmp_path, monkeypatch
):
    (tmp_path / "trainer.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ExportError,
        match="does not run without JAX: exit code 1, OSError: SavedModel file does not",
    ):
        served(str(tmp_path), str(tmp_path), {})


def test_an_interruption_ends_the_process_that_serves(tmp_path):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        served(str(tmp_path), str(tmp_path), {}, interrupted)


def test_a_request_to_end_takes_precedence_over_the_failure_of_the_serving_process(
    tmp_path, monkeypatch
):
    calls, ended = itertools.count(), tmp_path / "ended"
    ended.write_text("#!/bin/sh\nsleep 0.3\nexit 1\n")
    ended.chmod(0o700)
    monkeypatch.setattr(verification, "POLL_SECONDS", 1.0)
    monkeypatch.setattr(verification.sys, "executable", str(ended))

    def asked_to_end_after_the_first_look():
        if next(calls) > 0:
            raise SystemExit(75)

    with pytest.raises(SystemExit, match="75"):
        served(
            str(tmp_path),
            str(tmp_path),
            {},
            asked_to_end_after_the_first_look,
        )


STUCK = """
import sys, time
from trainer.serving.verification import served

class Stuck:
    def __reduce__(self):
        return time.sleep, (60,)

served(sys.argv[1], sys.argv[1], Stuck())
"""


def child_of(pid):
    """The process that serves; None while there is none."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    serving = [
        int(each)
        for each in found
        if b"trainer.serving.verification" in Path(f"/proc/{each}/cmdline").read_bytes()
    ]
    return serving[0] if serving else None


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_for(condition, seconds):
    stop = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < stop:
        time.sleep(0.02)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("late", [0.0, 1.5], ids=["while it starts", "while it works"])
def test_a_killed_export_leaves_no_process(fork_server, tmp_path, late):
    parent = fork_server.start(["-c", STUCK, str(tmp_path)], tmp_path / "printed")
    serving = wait_for(lambda: child_of(parent.pid), 60)
    assert serving, parent.printed
    time.sleep(late)
    assert is_running(serving)
    parent.kill()
    parent.wait()
    try:
        assert wait_for(lambda: not is_running(serving), 5)
    finally:
        if is_running(serving):
            os.kill(serving, 9)
