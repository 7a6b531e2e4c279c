"""Small models in flax.nnx for the recipes. A model takes device batches as they come and scales them itself."""
