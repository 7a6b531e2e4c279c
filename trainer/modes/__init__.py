"""The Trainer's modes: training, evaluation, both in turn, following, prediction. A session surrounds each call."""
