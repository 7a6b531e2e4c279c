"""Datasets that TFDS has prepared."""
