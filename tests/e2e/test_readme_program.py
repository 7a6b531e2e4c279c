"""README's program, copied from the page, in an empty directory; and the same on two processes."""

import re
import socket
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"<!-- ci: first\.py -->\n```python\n(.*?)```", PAGE, re.DOTALL)
PROGRAM = "\n".join(BLOCKS)
HOSTS = "import jax\njax.distributed.initialize('127.0.0.1:{}', 2, {})\n"
RECORDS = "over 368 of 368 records of shards, split 'validation', proven exact"
RESULT = rf"step 893: accuracy (9[5-8]\.\d\d)%, loss (0\.\d{{4}}) {RECORDS}"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_training_and_evaluation_are_fifteen_lines():
    assert len(BLOCKS) == 2
    assert sum(bool(line.strip()) for line in PROGRAM.splitlines()) <= 15


@pytest.mark.slow
def test_the_program_is_the_same_on_two_processes(digits, fork_server, tmp_path):
    found, port = {}, free_port()
    for name, beginnings in {
        "one": [""],
        "two": [HOSTS.format(port, index) for index in (0, 1)],
    }.items():
        directory = tmp_path / name
        directory.mkdir()
        (directory / "shards").symlink_to(digits[1])
        inside = f"import os\nos.chdir({str(directory)!r})\n"
        processes = [
            fork_server.start(["-c", f"{inside}{beginning}{PROGRAM}"], directory / f"{index}.txt")
            for index, beginning in enumerate(beginnings)
        ]
        for process in processes:
            assert process.wait(120)[0] == 0, process.printed
        found[name] = [re.search(RESULT, process.printed) for process in processes]
    (alone,), pair = found["one"], found["two"]
    for result in pair:
        assert [float(number) for number in result.groups()] == pytest.approx(
            [*map(float, alone.groups())], rel=1e-3
        )
