"""Draws README's pictures: python .ci/draw_pages.py shards/photos, with the dataset of README's
block `photos`.

It trains on it, kills the training, resumes it, and shows as Chromium does: the page of the
dataset, that of the evaluation, and the loss of the resumed run in TensorBoard."""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/making")]

from browser import FLAGS, find_browser, open_browser  # noqa: E402

from trainer.reports.metrics_lines import last_step  # noqa: E402

STEPS, KILLED_AT = 400, 180
WIDTH, HEIGHT, COLORS = 1000, 640, 96
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
TENSORBOARD = (845, 600)  # pixels, without its settings


def main() -> None:
    """Writes page_dataset.png, page_evaluation.png and tensorboard.png beside this file."""
    data = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # the pages name relative paths
        Path("shards").mkdir()
        Path("shards", data.name).symlink_to(data)
        train(f"shards/{data.name}", "runs/photos", "evaluation.html")
        run("pipeline.commands.describe", f"shards/{data.name}", "--html=dataset.html")
        with open_browser(f"{scratch}/profile") as browser:
            for name in ("dataset", "evaluation"):
                browser.show(f"{name}.html", WIDTH)
                browser.screenshot(f"{name}.png", height=HEIGHT)
                publish(f"{name}.png", f"page_{name}.png", (WIDTH, HEIGHT))
        photograph_tensorboard("runs/photos", "tensorboard.png")
        publish("tensorboard.png", "tensorboard.png", TENSORBOARD)
        os.chdir(ROOT)


def train(data: str, workdir: str, report: str) -> None:
    """Trains until it is killed, and from its newest checkpoint to the end."""
    options = [
        "images",
        f"--data-dir={data}",
        f"--workdir={workdir}",
        "--size=32",
        f"--max-steps={STEPS}",
    ]
    options += ["--checkpoint-every-steps=50", f"--report={report}"]
    with subprocess.Popen([sys.executable, "-m", "trainer", *options], env=ENVIRONMENT) as first:
        while (last_step(f"{workdir}/train") or 0) < KILLED_AT:
            time.sleep(0.2)
        first.kill()
    run("trainer", *options)


def run(module: str, *options: str) -> None:
    """Runs a command of infeed."""
    subprocess.run([sys.executable, "-m", module, *options], check=True, env=ENVIRONMENT)


def photograph_tensorboard(workdir: str, picture: str) -> None:
    """Writes what it shows of the loss to this file."""
    serve = [
        sys.executable,
        "-m",
        "tensorboard.main",
        f"--logdir={workdir}",
        "--host=127.0.0.1",
        "--port=0",
    ]
    with subprocess.Popen(serve, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr
            address = next(
                found[1]
                for line in server.stderr
                if (found := re.search(r" at (http://\S+/) ", line))
            )
            time.sleep(20)  # until it has read the events
            flags = [flag for flag in FLAGS if "pipe" not in flag]
            flags += [
                "--virtual-time-budget=30000",
                "--window-size=1100,640",
                f"--user-data-dir={Path('tb').absolute()}",
            ]
            shot = [
                f"--screenshot={Path(picture).absolute()}",
                f"{address}?tagFilter=loss#timeseries",
            ]
            subprocess.run([str(find_browser()), *flags, *shot], check=True, timeout=600)
        finally:
            server.terminate()


def publish(picture: str, name: str, size: tuple[int, int]) -> None:
    """Writes the part of this size, from the upper left corner, beside this file."""
    path = Path(ROOT, ".ci", name)
    Image.open(picture).convert("RGB").crop((0, 0, *size)).quantize(COLORS).save(
        path, "PNG", optimize=True
    )
    print(f".ci/{name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
