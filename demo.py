"""A complete run on real images, as four commands: raw data, shards, training, exact evaluation.

    python demo.py [--out demo_out] [--fresh]

Each command is printed before it runs, so that you can copy and change it. Nothing is downloaded: the images are the
1,797 handwritten digits that ship with scikit-learn, written as tars like ImageNet's."""

if __name__ == "__main__":
    from pipeline.ctrl_c import leave_at_once

    leave_at_once()  # before the imports: they take seconds

import argparse
import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipeline.shards.manifest import read_manifest
from pipeline.sizes import format_bytes

TARGET_SHARD_BYTES = "250KB"  # several small shards for 1.5 MB of images; the default is 100MB


def main() -> int:
    """Runs the stages. Returns the exit status of the first that fails, or 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo_out"), help="directory for everything the demo writes")
    parser.add_argument("--fresh", action="store_true", help="first remove the output of an earlier run")
    args = parser.parse_args()
    console = Console()
    if args.fresh:
        shutil.rmtree(args.out, ignore_errors=True)
    began = time.monotonic()
    for title, module, options in stages(args.out):
        command = [sys.executable, "-m", module, *options]
        console.rule(f"[bold]{title}", align="left")
        console.print(shlex.join(["python", *command[1:]]), style="cyan", soft_wrap=True, highlight=False)
        before = signal.signal(signal.SIGINT, lambda *_: None)  # the stage handles Ctrl-C, and needs time to save
        status = subprocess.run(command, check=False).returncode
        signal.signal(signal.SIGINT, before)
        if status:
            return status
    console.print(summary(args.out, time.monotonic() - began))
    return 0


def stages(out: Path) -> list[tuple[str, str, list[str]]]:
    """(title, module, options) of each command."""
    raw, shards, model = f"{out}/raw", f"{out}/shards", f"{out}/model"
    convert = [
        f"--raw_data_dir={raw}",
        f"--gcs_output_path={shards}",
        f"--label_file={raw}/synsets.txt",
        f"--target_shard_bytes={TARGET_SHARD_BYTES}",
    ]
    digits = [f"--data-dir={shards}", f"--workdir={model}"]
    return [
        ("1 Raw data in ImageNet's layout", "converters.digits_raw", [raw]),
        ("2 Shards", "converters.imagenet_to_gcs", convert),
        ("3 Training", "trainer", ["digits", *digits]),
        ("4 Exact evaluation of the newest checkpoint", "trainer", ["digits", *digits, "--mode=evaluate"]),
    ]


def summary(out: Path, seconds: float) -> Table:
    """What was written, trained and proven, read from the stages' output files."""
    manifest = read_manifest(f"{out}/shards")
    trained = json.loads((out / "model/train_result.json").read_text())
    result = json.loads((out / "model/eval_result.json").read_text())
    table = Table(title="Summary", show_header=False, title_justify="left")
    for name, split in sorted(manifest.splits.items()):
        sizes = f"{split.num_records:,} records, {format_bytes(split.num_bytes)} in {len(split.shards)} shards"
        table.add_row(name, f"{sizes}, fingerprint {split.fingerprint[:8]}")
    table.add_row("training", f"{result['step']} steps, {trained['steps_per_second']:.0f} steps/s")
    table.add_row("accuracy", f"{100 * result['accuracy']:.2f} %")
    counted = f"sum of _mask = {result['records']} of N = {result['num_records']}"
    table.add_row("exactness", f"{counted}, proven: {str(result['proven']).lower()}")
    table.add_row("wall time", f"{seconds:.0f} s")
    table.add_row("look at it", f"tensorboard --logdir {out}/model")
    return table


if __name__ == "__main__":
    sys.exit(main())
