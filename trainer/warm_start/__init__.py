"""Warm start: the first values of a model's arrays, from a checkpoint of this or another program."""
