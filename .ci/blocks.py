"""Runs the code blocks of documents, so that what they show works.

    python .ci/blocks.py PAGE [NAME...]    runs the blocks of a page, in order: all, or those with these names
    python .ci/blocks.py --all PAGE...     runs the blocks of several pages, in order
    python .ci/blocks.py --sweep PAGE...   runs the blocks that are too slow for every push
    python .ci/blocks.py --check PAGE...   fails if a bash or python block has no mark

The line before a block is its mark: <!-- ci: NAME -->, <!-- sweep: NAME --> or <!-- not run: REASON -->. A block with a
name such as module.py is saved under it in the current directory, for the blocks after it to import. Python blocks run
in forks of a process that has imported the heavy libraries (forks.py), except those that need their own."""

import atexit
import functools
import re
import resource
import subprocess
import sys
import tempfile
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

MARK = r"^<!-- (?P<mark>[^:\n]+): (?P<name>[^\n]+) -->\n"
BLOCK = re.compile(rf"(?:{MARK})?^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
MARKS = ("ci", "sweep", "not run")
SUFFIXES = {"bash": ".sh", "python": ".py"}
PROGRAMS = {"bash": ["bash", "-euxo", "pipefail"], "python": [sys.executable]}
FORKS = Path(__file__).with_name("forks.py")


class Block(NamedTuple):
    """A block of code in a page, and its mark."""

    page: str
    mark: str | None
    name: str
    language: str
    code: str

    @property
    def may_be_forked(self) -> bool:
        """Whether it may find libraries imported. Environments of sweeps lack some, and some read variables it sets."""
        return self.language == "python" and self.mark == "ci" and "os.environ" not in self.code

    def __str__(self) -> str:
        return f"{self.page}: {self.name}"


def blocks(page: str) -> list[Block]:
    """The bash and python blocks of a page."""
    found = BLOCK.finditer(Path(page).read_text())
    return [Block(page, **match.groupdict()) for match in found if match["language"] in PROGRAMS]


def run(block: Block) -> None:
    """Runs one block in the current directory, or saves it there as a module. Exits if it fails."""
    print(f"--- {block}", flush=True)
    if block.name.endswith(".py"):
        Path(block.name).write_text(block.code)
        return
    with tempfile.NamedTemporaryFile("w", suffix=SUFFIXES[block.language]) as file:  # children import it
        file.write(block.code)
        file.flush()
        begun = time.monotonic()
        if block.may_be_forked:
            forks().send(file.name)
            status, used = forks().recv()
        else:
            used = cpu_seconds()
            status = subprocess.run([*PROGRAMS[block.language], file.name], check=False).returncode
            used = cpu_seconds() - used
        took = time.monotonic() - begun
        print(f"--- {block} took {took:.0f} s, {used:.0f} CPU seconds", flush=True)
    if status:
        sys.exit(f"{block} ended with exit code {status}.")


@functools.cache
def forks() -> Connection:
    """A process that runs the programs whose files it is sent."""
    ours, theirs = Pipe()
    with theirs:  # or `ours` would not notice that the process has ended
        process = subprocess.Popen([sys.executable, str(FORKS), str(theirs.fileno())], pass_fds=[theirs.fileno()])
    atexit.register(process.wait)
    atexit.register(ours.close)  # called first, and ends it
    return ours


def cpu_seconds() -> float:
    """CPU time of all children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def check(pages: list[str]) -> None:
    """Exits with a list of the blocks that are neither run nor excused."""
    bare = [block for page in pages for block in blocks(page) if block.mark not in MARKS]
    for block in bare:
        print(f"{block.page}: a {block.language} block has no mark. It begins: {block.code.splitlines()[0]}")
    if bare:
        sys.exit("Mark each block with <!-- ci: NAME -->, <!-- sweep: NAME --> or <!-- not run: REASON -->.")


def main(arguments: list[str]) -> None:
    """Runs or checks what the arguments choose."""
    if arguments[0] == "--check":
        check(arguments[1:])
        return
    sweep = arguments[0] == "--sweep"
    pages, names = (arguments[1:], []) if arguments[0] in ("--sweep", "--all") else (arguments[:1], arguments[1:])
    chosen = [block for page in pages for block in blocks(page) if block.mark == ("sweep" if sweep else "ci")]
    missing = set(names) - {block.name for block in chosen}
    if missing:
        sys.exit(f"{pages[0]} has no block named {', '.join(sorted(missing))}.")
    for block in chosen:
        if not names or block.name in names:
            run(block)


if __name__ == "__main__":
    main(sys.argv[1:])
