"""Draws README's pictures of pages, from the output of the demo: python .ci/draw_pages.py demo_out

They show a page about its shards and one about its training, as Chromium does."""

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/making")]

from browser import open_browser  # noqa: E402

from pipeline import describe  # noqa: E402
from trainer import report  # noqa: E402

WIDTH, COLORS = 1000, 96
PICTURES = (("dataset", "Samples", 455), ("run", "Loss", 475))  # page, section, pixels


def main() -> None:
    """Writes page_dataset.png and page_run.png beside this file."""
    demo = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch, open_browser(scratch) as browser:
        describe.main([str(demo / "shards"), "--samples=12", f"--html={scratch}/dataset.html"])
        report.main([str(demo / "model"), f"--html={scratch}/run.html"])
        for name, section, height in PICTURES:
            browser.show(f"{scratch}/{name}.html", WIDTH)
            heading = f"[...document.querySelectorAll('h2')].find(h => h.textContent === '{section}')"
            top = browser.evaluate(f"{heading}.getBoundingClientRect().top + window.scrollY")
            browser.screenshot(f"{scratch}/{name}.png", top, height)
            shown = io.BytesIO()
            Image.open(f"{scratch}/{name}.png").convert("RGB").quantize(COLORS).save(shown, "PNG", optimize=True)
            Path(ROOT, f".ci/page_{name}.png").write_bytes(shown.getvalue())
            print(f".ci/page_{name}.png: {len(shown.getvalue()):,} bytes")


if __name__ == "__main__":
    main()
