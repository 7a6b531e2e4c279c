"""Exports: from a checkpoint to a SavedModel that serves what was evaluated, verified before it is published."""
