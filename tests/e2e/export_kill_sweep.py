"""An export that is killed at ten moments, as a table: .ci/sweep. Exits 1 unless each leaves a whole export or none.

python tests/e2e/export_kill_sweep.py [kills]"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import fork_server
import numpy as np

from trainer.exporting.serving_process import Requests
from trainer.exporting.verification import served

ROOT = Path(__file__).parents[2]


def main(count: int = 10) -> None:
    """Prints a row for each kill. The moments are spread over the time that an export takes, and a tenth more."""
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "JAX_PLATFORMS": "cpu"}
        with fork_server.serving(f"{scratch}/forks", env):
            server = fork_server.ForkServer(f"{scratch}/forks")
            exports = Path(scratch, "model/export")
            run(server, scratch, "--tiny")
            seconds = run(server, scratch, "--tiny", "--mode=export")
            print(f"an export takes {seconds:.1f} s\n\n| killed after | exports before, after | left unfinished |")
            print("| --- | --- | --- |", flush=True)
            for number in range(count):
                failed += not killed(server, scratch, exports, seconds * (0.1 + number / (count - 1)))
            run(server, scratch, "--tiny", "--mode=export")
            server.close()
        failed += not all(is_whole(path, scratch) for path in published(exports))
        unfinished = [path.name for path in exports.iterdir() if not path.name.isdecimal()]
    print(f"\n{count} kills, {failed} did not leave whole exports only; the next one left {unfinished or 'nothing'}")
    sys.exit(1 if failed or unfinished else 0)


def run(server: fork_server.ForkServer, scratch: str, *flags: str) -> float:
    """Seconds that the command takes."""
    begun = time.monotonic()
    code, printed = server.run(
        ["-m", "trainer", "mnist", f"--workdir={scratch}/model", *flags], Path(scratch, "out.txt"), os.environ, 300
    )
    if code:
        sys.exit(printed)
    return time.monotonic() - begun


def killed(server: fork_server.ForkServer, scratch: str, exports: Path, moment: float) -> bool:
    """Whether all that is published afterwards can be served."""
    before = published(exports)
    command = ["-m", "trainer", "mnist", f"--workdir={scratch}/model", "--tiny", "--mode=export"]
    process = server.start(command, Path(scratch, "killed.txt"), os.environ)
    time.sleep(moment)
    process.kill()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        return False
    after = published(exports)
    unfinished = len([path for path in exports.iterdir() if not path.name.isdecimal()])
    print(f"| {moment:.1f} s | {len(before)}, {len(after)} | {unfinished} |", flush=True)
    return all(is_whole(path, scratch) for path in after - before)


def published(exports: Path) -> set[Path]:
    """What a server would load."""
    return {path for path in exports.iterdir() if path.name.isdecimal()}


def is_whole(export: Path, scratch: str) -> bool:
    """Whether a process without JAX predicts with it."""
    images = {"arrays": {"image": np.zeros((1, 28, 28, 1), np.uint8)}}
    answers = served(str(export), scratch, Requests(images, (1,)))["arrays", 1]
    return {"class", "probability"} <= answers.keys() and (export / "assets.extra/infeed.json").is_file()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
