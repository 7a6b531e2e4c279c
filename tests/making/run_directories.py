"""Work directories of runs as a page finds them, with times that a test states."""

from trainer.history.segments import BadRecords, Command, End, Start

NOON = 1_790_164_800.0  # 2026-09-23T12:00:00 UTC


def at(seconds):
    return f"2026-09-23T12:{seconds // 60:02d}:{seconds % 60:02d}+00:00"


def start(step, seconds, rate="0.1", **changes):
    command = Command("digits", ["--data-dir", "d", f"--learning-rate={rate}", "--max-steps", "300"], "/home/me")
    given = {"fingerprint": "f", "sources": [{"name": "d, split 'train'"}]}
    told = {"settings": {"max_steps": 300, "seed": 0}, "versions": {"jax": "0.10"}} | changes
    return Start(step, at(seconds), {}, given, command=command, devices="8 x TPU v4, 2 processes", **told)


KILLED_AND_PREEMPTED = (
    start(0, 0),
    End(100, at(60), "SIGTERM on host 1 of 2"),
    start(100, 300),
    start(200, 600, reported=220),
    BadRecords("f", {"7": "its JPEG is truncated"}),
    End(300, at(660), "finished"),
)
