"""Runs commands of infeed in one process, and records what they execute, start and open for writing.

    python audited.py RECORD COMMANDS    COMMANDS: JSON, a list of [words of infeed, ...]; RECORD: where the record goes

What code in C++ opens is not in the record: compare the directories, too."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STARTS = (
    "subprocess.Popen",
    "os.system",
    "os.posix_spawn",
    "os.exec",
    "os.spawn",
    "os.fork",
    "os.forkpty",
    "pty.spawn",
)
CHANGES = (
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.truncate",
    "os.link",
    "os.symlink",
    "os.chmod",
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def main(record: str, commands: Sequence[Sequence[str]]) -> None:
    """Runs the commands; the record is written after each of them, and also if one ends the process."""
    seen: list[tuple[str, str]] = []
    codes: list[Any] = []

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "exec":
            seen.append(("exec", args[0].co_filename))
        elif event == "compile":
            seen.append(
                (
                    "compile",
                    os.fsdecode(args[1] or b"") if isinstance(args[1], str | bytes | None) else "",
                )
            )
        elif event == "import":
            seen.append(("import", str(args[0])))
        elif event == "pickle.find_class":
            seen.append(("unpickled", f"{args[0]}.{args[1]}"))
        elif event in STARTS:
            seen.append(("started", f"{event} {args[:2]}"))
        elif event in CHANGES or (
            event == "open" and not isinstance(args[0], int) and (args[2] or 0) & WRITING
        ):
            seen.append(("changed", str(Path(os.fsdecode(args[0])).absolute())))

    def write() -> None:
        places = [str(Path(place).absolute()) for place in sys.path]
        Path(record).write_text(json.dumps({"codes": codes, "seen": seen, "path": places}))

    sys.addaudithook(hook)
    import atexit

    atexit.register(write)  # `infeed train` ends its process, but calls the exit handlers
    from pipeline.commands.infeed import main as infeed

    for words in commands:
        sys.argv = ["infeed", *words]
        try:
            codes.append(infeed())
        except SystemExit as left:
            codes.append(left.code or 0)
        write()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
