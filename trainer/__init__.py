"""Trains JAX models from host batches, k steps per dispatch, and evaluates them exactly.

Start at trainer.trainer.Trainer, or run `python -m trainer <recipe>`. Works without tensorflow
installed."""
