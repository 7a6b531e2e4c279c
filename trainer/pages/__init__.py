"""The pages of training: about runs, about an evaluation, and about what the model sees."""
