"""Small flax.nnx models for the recipes. A model takes unscaled device batches and scales them
itself."""
