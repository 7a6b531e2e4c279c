"""Decodes payloads into the features of a batch: layouts, ops and padding, in NumPy."""
