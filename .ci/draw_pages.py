"""Draws README's pictures: python .ci/draw_pages.py shards/photos, with the dataset of README's block `photos`.

It trains on it, kills the training, resumes it, and shows as Chromium does: the page of the dataset, that of the last
evaluation, and the curves of the resumed run in TensorBoard."""

import io
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/making")]

from browser import open_browser  # noqa: E402

from trainer.events.metrics_lines import last_step  # noqa: E402

STEPS, KILLED_AT = 400, 180
WIDTH, COLORS = 1000, 64
HEIGHTS = {"dataset": 620, "evaluation": 620}  # pixels
CHARTS = """
    [...document.querySelectorAll('*')].length
"""


def main() -> None:
    """Writes page_dataset.png, page_evaluation.png and tensorboard.png beside this file."""
    data = sys.argv[1]
    with tempfile.TemporaryDirectory() as scratch:
        workdir = f"{scratch}/photos"
        training = ["-m", "trainer", "images", f"--data-dir={data}", f"--workdir={workdir}", "--size=32"]
        training += [f"--max-steps={STEPS}", "--checkpoint-every-steps=50"]
        first = subprocess.Popen([sys.executable, *training], cwd=Path.cwd())
        while (last_step(f"{workdir}/train") or 0) < KILLED_AT:
            time.sleep(0.5)
        first.kill()
        first.wait()
        run(*training, f"--report={scratch}/evaluation.html")
        run("-m", "pipeline.describe", data, f"--html={scratch}/dataset.html")
        with open_browser(scratch) as browser, tensorboard(workdir) as address:
            for name, height in HEIGHTS.items():
                browser.show(f"{scratch}/{name}.html", WIDTH)
                save(browser, f"page_{name}", height)
