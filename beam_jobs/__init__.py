"""Conversion of raw data into shards on Apache Beam: scan, assign, gather, commit. Knows no dataset.

Only `graph` and `launch` import Beam; everything else runs, and is tested, without it."""
