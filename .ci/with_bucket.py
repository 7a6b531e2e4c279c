"""Runs a command that finds a new bucket in the tests' GCS or S3 server, as an unmodified program
finds one of Google's or Amazon's.

PYTHONPATH=tests/servers python .ci/with_bucket.py gs|s3 BUCKET COMMAND..."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import fake_gcs.server
import fake_s3.server

SERVERS = {"gs": fake_gcs.server.start, "s3": fake_s3.server.start}

if __name__ == "__main__":
    scheme, bucket, *command = sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory, SERVERS[scheme](Path(directory)) as server:
        server.make_bucket(bucket)
        status = subprocess.run(command, env=os.environ | server.env, check=False).returncode
    sys.exit(status)
