"""Checkpoints on a disk or in a bucket."""
