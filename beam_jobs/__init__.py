"""Conversion of raw data into shards on Apache Beam: scan, assign, gather, commit. Independent of
any dataset.

Only `dask_runner` and `local_workers` import Beam on import; everything else runs and is tested
without it."""
