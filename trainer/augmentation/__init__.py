"""Augments batches on the device: each record draws from its own `_seed`."""
