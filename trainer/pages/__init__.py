"""The pages of training: about runs, an evaluation, what the model sees, and what a step saw."""
