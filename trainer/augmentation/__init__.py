"""Augmentation of a batch on the device: each record draws from its own `_seed`."""
