"""Runs three of the notebooks in their small form, in kernels of this interpreter: python
.ci/notebooks.py.

Needs ipykernel. Puts small data into the current directory, in place of what the notebooks
download; skips the cells that install or download. Fails unless each notebook shows what it
should."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from notebook import Kernel, Shown, cells_of, run_all

ROOT = Path(__file__).parents[1]


def check_device_speed(_: Kernel, __: dict[str, Shown], text: str) -> None:
    """A row of speeds per size, all above 0."""
    rows = re.findall(r"^ *(\d+) +(\S+) +(\S+)$", text, re.MULTILINE)
    assert len(rows) >= 3, text
    assert all(float(speed) > 0 for row in rows for speed in row), rows


def check_fashion_mnist(kernel: Kernel, shown: dict[str, Shown], _: str) -> None:
    """A proven evaluation far above chance, which is 0.1 for ten classes, and a picture of
    predictions."""
    assert proven_metrics(kernel)["accuracy"] > 0.6
    assert sum(each.pictures for each in shown.values()) == 1, shown


def check_shakespeare(kernel: Kernel, shown: dict[str, Shown], _: str) -> None:
    """A proven evaluation that needs fewer than 8 bits per byte, and three texts that continue the
    prompt."""
    assert 0 < proven_metrics(kernel)["bits_per_byte"] < 8
    assert [*shown.values()][-1].text.count("ROMEO:\n") == 3, shown


def proven_metrics(kernel: Kernel) -> dict[str, float]:
    """The metrics of the evaluation, which must be proven."""
    proven, metrics = json.loads(
        kernel.run("import json; print(json.dumps([result.proven, result.metrics]))").text
    )
    assert proven, metrics
    return metrics


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=".") as made:
        subprocess.run([sys.executable, ROOT / ".ci/small_datasets.py", made], check=True)
        Path(made, "mnist").rename("fashion_mnist")  # scikit-learn's digits
    Path("shakespeare").mkdir()
    for page in ROOT.glob("docs/*.md"):
        Path("shakespeare", f"{page.stem}.txt").write_text(page.read_text())
    os.environ["INFEED_SMALL"] = "1"
    for check in (check_device_speed, check_fashion_mnist, check_shakespeare):
        begun, name = time.monotonic(), check.__name__.removeprefix("check_")
        cells = [
            code
            for code in cells_of(f"{ROOT}/examples/{name}.ipynb")
            if not re.search("%pip|urlretrieve", code)
        ]
        with Kernel() as kernel:
            shown = run_all(kernel, cells)
            check(kernel, shown, "".join(each.text for each in shown.values()))
        print(f"=== {name} took {time.monotonic() - begun:.0f} s", flush=True)
