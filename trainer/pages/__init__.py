"""The pages of training: about runs, about an evaluation, about what the model sees, and what a step saw."""
