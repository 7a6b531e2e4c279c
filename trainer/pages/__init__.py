"""The pages of a recipe: about an evaluation, and about what the model sees in training."""
