"""Runs a command that finds a new bucket in the tests' GCS server, as an unmodified program finds
one of Google's.

PYTHONPATH=tests/servers python .ci/with_bucket.py BUCKET COMMAND..."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from fake_gcs.server import start

if __name__ == "__main__":
    bucket, *command = sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory, start(Path(directory)) as server:
        server.make_bucket(bucket)
        status = subprocess.run(command, env=os.environ | server.env, check=False).returncode
    sys.exit(status)
