"""Runs the code blocks of documents, so that what they show works.

    python .ci/blocks.py PAGE [NAME...]    runs the blocks of a page, in order: all, or those with these names
    python .ci/blocks.py --sweep PAGE...   runs the blocks that are too slow for every push
    python .ci/blocks.py --check PAGE...   fails if a bash or python block has no mark

The line before a block is its mark: <!-- ci: NAME -->, <!-- sweep: NAME --> or <!-- not run: REASON
-->. A block with a name such as module.py is saved under it in the current directory, for the
blocks after it to import. Blocks with the same name, one after the other, are one program.

FORKS, a variable, is the address of a process that has imported the heavy libraries (forks.py), and
FORKS_PID its pid: python blocks and the runs of bash blocks are forks of it, unless the block sets
variables of its own."""

import itertools
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

MARK = r"^<!-- (?P<mark>[^:\n]+): (?P<name>[^\n]+) -->\n"
BLOCK = re.compile(
    rf"(?:{MARK})?^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
MARKS = ("ci", "sweep", "not run")
SUFFIXES = {"bash": ".sh", "python": ".py"}
PROGRAMS = {"bash": ["bash", "-euxo", "pipefail"], "python": [sys.executable]}
SETS_VARIABLES = re.compile(r"os\.environ|^export ", re.MULTILINE)
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
        """Whether its programs may find libraries imported: these have read the variables, and a
        sweep has others."""
        return self.mark == "ci" and not SETS_VARIABLES.search(self.code)

    def __str__(self) -> str:
        return f"{self.page}: {self.name}"


def blocks(page: str) -> list[Block]:
    """The bash and python blocks of a page."""
    found = BLOCK.finditer(Path(page).read_text())
    return [Block(page, **match.groupdict()) for match in found if match["language"] in PROGRAMS]


def joined(chosen: Iterable[Block]) -> list[Block]:
    """The blocks; those with the same name, one after the other, as one program."""
    return [
        first._replace(code="\n".join(block.code for block in (first, *rest)))
        for first, *rest in groups(chosen)
    ]


def groups(chosen: Iterable[Block]) -> list[list[Block]]:
    """The blocks in runs of equal names."""
    return [list(group) for _, group in itertools.groupby(chosen, lambda block: block.name)]


def run(block: Block) -> None:
    """Runs one block in the current directory, or saves it there as a module. Exits if it fails."""
    print(f"--- {block}", flush=True)
    if block.name.endswith(".py"):
        Path(block.name).write_text(block.code)
        return
    with tempfile.NamedTemporaryFile(
        "w", suffix=SUFFIXES[block.language]
    ) as file:  # children import it
        file.write(block.code)
        file.flush()
        begun, used = time.monotonic(), cpu_seconds()
        program, environment = started(block)
        status = subprocess.run([*program, file.name], env=environment, check=False).returncode
        took, used = time.monotonic() - begun, cpu_seconds() - used
        print(f"--- {block} took {took:.0f} s, {used:.0f} CPU seconds", flush=True)
    if status:
        sys.exit(f"{block} ended with exit code {status}.")


def started(block: Block) -> tuple[list[str], dict[str, str]]:
    """The program that a block is given to, and its environment."""
    program, environment = PROGRAMS[block.language], dict(os.environ)
    if "FORKS" not in environment or not block.may_be_forked:
        return program, environment
    if block.language == "python":
        return [*program, str(FORKS), environment["FORKS"]], environment
    return program, environment | {
        "PATH": f"{FORKS.with_name('forked').resolve()}:{environment['PATH']}"
    }


def cpu_seconds() -> float:
    """CPU time of all children that have ended, and of all forks."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = usage.ru_utime + usage.ru_stime
    if "FORKS" in os.environ:
        children = (
            Path(f"/proc/{os.environ['FORKS_PID']}/stat")
            .read_text()
            .rpartition(")")[2]
            .split()[13:15]
        )
        seconds += sum(map(int, children)) / os.sysconf("SC_CLK_TCK")
    return seconds


def check(pages: list[str]) -> None:
    """Exits with a list of the blocks that are neither run nor excused."""
    bare = [block for page in pages for block in blocks(page) if block.mark not in MARKS]
    for block in bare:
        print(
            f"{block.page}: a {block.language} block has no mark. It begins: "
            f"{block.code.splitlines()[0]}"
        )
    if bare:
        sys.exit(
            "Mark each block with <!-- ci: NAME -->, <!-- sweep: NAME --> or <!-- not run: REASON "
            "-->."
        )


def main(arguments: list[str]) -> None:
    """Runs or checks what the arguments choose."""
    if arguments[0] == "--check":
        check(arguments[1:])
        return
    sweep = arguments[0] == "--sweep"
    pages, names = (arguments[1:], []) if sweep else (arguments[:1], arguments[1:])
    chosen = [
        block
        for page in pages
        for block in blocks(page)
        if block.mark == ("sweep" if sweep else "ci")
    ]
    missing = set(names) - {block.name for block in chosen}
    if missing:
        sys.exit(f"{pages[0]} has no block named {', '.join(sorted(missing))}.")
    for block in joined(block for block in chosen if not names or block.name in names):
        run(block)


if __name__ == "__main__":
    main(sys.argv[1:])
