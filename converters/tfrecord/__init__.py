"""Existing TFRecord files, sharded again."""
