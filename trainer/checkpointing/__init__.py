"""Writes, lists and restores checkpoints on a disk or in a bucket."""
