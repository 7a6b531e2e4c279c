"""The peak memory of every source at every size, printed as a table: .ci/sweep. Exits 1 if one is over its bound."""

import sys
import tempfile
from pathlib import Path

from fake_gcs.server import start
from memory import BUCKET, MIB, ROWS, peak


def main() -> None:
    """Prints a row a conversion."""
    over = 0
    print("| source | GB | peak over idle, MiB | bound, MiB | seconds |\n| --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "gcs").mkdir()
        with start(Path(scratch, "gcs")) as server:
            server.make_bucket(BUCKET)
            for name, row in ROWS.items():
                for gigabytes in row.gigabytes:
                    found = peak(row, gigabytes, Path(scratch, "data"), server)
                    over += found.bytes > row.bound * MIB
                    figures = f"{found.bytes / MIB:.0f} | {row.bound} | {found.seconds:.0f}"
                    print(f"| {name} | {gigabytes:g} | {figures} |", flush=True)
    sys.exit(1 if over else 0)


if __name__ == "__main__":
    main()
